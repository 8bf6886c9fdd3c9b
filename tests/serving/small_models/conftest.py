"""What the tests of this folder share beside the models themselves."""

import pytest
import torch

from tests.serving.small_models.tiny import tiny_settings


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny():
    """The usual settings at a fraction of their size."""
    return tiny_settings()
