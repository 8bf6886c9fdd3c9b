"""What all tests of the router share."""

import sys
from pathlib import Path

import pytest

# Helpers of the tests are imported as tests.router.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    """Compile everything once, before any test, and nothing for other types in one."""
    from router import warm_up

    warm_up()
