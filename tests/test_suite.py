"""`make test` in parts: together they run every test once."""

import itertools
import re
from pathlib import Path

import pytest

from tests.conftest import ALONE, SIDE_BY_SIDE

ROOT = Path(__file__).parents[1]
SPREAD = r" -n \d --dist loadfile --no-loadscope-reorder"
AGAIN = r" \|\| \$\(AGAIN\)"


def parts():
    """What the calls of pytest in `make test` choose."""
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    calls = [line for line in recipe[1].splitlines() if "pytest" in line]
    found = [re.fullmatch(rf"\t\$\(BIN\)/python -m pytest(?:{SPREAD})? -m '([a-z ]+)'{AGAIN}", call) for call in calls]
    assert all(found), calls
    return [one[1] for one in found]


@pytest.mark.parametrize(("long", "alone"), list(itertools.product([False, True], repeat=2)))
def test_every_test_that_is_not_long_is_in_one_part(long, alone):
    chosen = [eval(expression, {"long": long, "alone": alone}) for expression in parts()]
    assert sum(chosen) == (not long)


@pytest.mark.parametrize("suite", ["test", "test-long"])
def test_ray_is_brought_before(suite):
    """Its tests are in both, and are skipped without it."""
    needed = re.search(rf"^{suite}: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert needed
    assert "ray" in needed[1].split()


def test_what_is_listed_is_there():
    for path in (*SIDE_BY_SIDE, *ALONE):
        assert list(ROOT.glob(f"{path}*")), path
    assert all(path.startswith(SIDE_BY_SIDE) for path in ALONE)
