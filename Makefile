# Needs Python 3.11+ and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: up test test-long browser check format clean

up: .venv/.ready
	$(BIN)/penstock up

test: .venv/.ready browser check
	$(BIN)/python -m pytest

test-long: .venv/.ready browser
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]' || true  # else skipped
	$(BIN)/python -m pytest -m long

# What shows pages to the tests; where it cannot be had they are skipped, and say so.
browser:
	@sh tests/e2e/get_browser.sh

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,load,postgres,trace,dev]'
	touch $@
