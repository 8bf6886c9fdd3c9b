"""What all tests of sampling share."""

import sys
from pathlib import Path

import pytest
import torch

# Helpers of the tests are imported as tests.serving.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)
