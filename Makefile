# Needs Python 3.11+ and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# What does not wait for each other goes on side by side.
MAKEFLAGS += -j2

.PHONY: up test test-long browser ray check compiled format clean

up: .venv/.ready
	$(BIN)/penstock up

# What failed is tried once more by itself, since a machine that others use too may stall; a fault fails twice.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# On both cores what no clock judges, then alone what counts seconds or starts servers (tests/conftest.py says which).
test: .venv/.ready browser ray check compiled
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not long and not alone' || $(AGAIN)
	$(BIN)/python -m pytest -m 'not long and alone' || $(AGAIN)

test-long: .venv/.ready browser ray
	$(BIN)/python -m pytest -m long

# What shows pages to the tests; where it cannot be had they are skipped, and say so.
browser:
	@sh tests/e2e/get_browser.sh

# Ray, for the tests of several machines; where it cannot be had they are skipped, and say so. Nothing else is installed
# anew (not Penstock itself), so that what runs beside it is not disturbed.
ray: .venv/.ready
	@test -d .venv/lib/python*/site-packages/ray || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ray || true

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What tests call, compiled once, so that none waits for it.
compiled: .venv/.ready
	$(BIN)/python -m tests.warm

format: .venv/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
	  -e '.[serve,load,postgres,trace,dev]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # on all cores; templates that are no Python are left
	touch $@
