"""What all tests of the profiler share."""

import sys
from pathlib import Path

import pytest

# Helpers of the tests are imported as tests.serving.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Tiny models in Hugging Face layout."""
    from tests.serving.models.tiny import save

    root = tmp_path_factory.mktemp("models")
    for name in ("llama", "bert"):
        save(name, root)
    return root
