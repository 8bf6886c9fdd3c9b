"""What all tests of parallel share: the repository on the path, and a short directory to meet in."""

import sys
import tempfile
from pathlib import Path

import pytest
import torch

# Helpers of the tests are imported as tests.serving.…, here and in the processes that tests start.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def meeting_place():
    """pytest's own directories have paths too long for sockets."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)
