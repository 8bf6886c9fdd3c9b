"""What all tests of experts share."""

import sys
from pathlib import Path

import pytest
import torch

# Helpers of the tests are imported as tests.moe.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
