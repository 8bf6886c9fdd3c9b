"""A small library of Python to read, and the models made of it in a moment: what the tests of this folder share."""

import shutil
import sysconfig
from pathlib import Path

import msgspec
import pytest
import torch

from serving.small_models.make import make_models
from serving.small_models.settings import SETTINGS

MODULES = ("json", "heapq.py", "string.py", "textwrap.py", "tempfile.py")
TINY = {"vocabulary": 400, "hidden": 32, "layers": 2, "ffn": 48, "batch": 8, "context": 32, "steps": 25}
TINY["learning_rate"] = 5e-3


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Some modules of the real library, and a few topics."""
    real, folder = Path(sysconfig.get_path("stdlib")), tmp_path_factory.mktemp("library")
    for name in MODULES:
        copy = shutil.copytree if (real / name).is_dir() else shutil.copy
        copy(real / name, folder / name)
    (folder / "pydoc_data").mkdir()
    (folder / "pydoc_data" / "topics.py").write_text(
        f"topics = {{'b': {'Sets have members. ' * 3!r}, 'a': {'Lists have an order.'!r}}}\n"
    )
    return folder


@pytest.fixture(scope="session")
def tiny():
    """The usual settings at a fraction of their size."""
    return {name: msgspec.structs.replace(settings, **TINY) for name, settings in SETTINGS.items()}


@pytest.fixture(scope="session")
def made(tmp_path_factory, library, tiny):
    """(directory, outcomes by name)"""
    directory = tmp_path_factory.mktemp("made")
    outcomes = make_models(directory, settings=tiny, library=library)
    return directory, {outcome.name: outcome for outcome in outcomes}
