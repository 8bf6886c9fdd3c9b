"""What all tests of the endpoint share."""

import sys
from pathlib import Path

import pytest

# Helpers of the tests are imported as tests.serving.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="module")
def server():
    from tests.serving.http.doubles import running

    with running() as one:
        yield one
        assert not one.group.open
