"""One tiny model and text for all tests of the trainer."""

import sys
from pathlib import Path

import pytest

# Helpers of the tests are imported as tests.training.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    from tests.training.elastic.worlds import make_model

    return make_model(tmp_path_factory.mktemp("lm"))
