"""The small models at a fraction of their size, made of a little text in a moment."""

import shutil
import sysconfig
from pathlib import Path

import msgspec

from serving.small_models.make import make_models
from serving.small_models.settings import SETTINGS

MODULES = ("json", "heapq.py", "string.py", "textwrap.py", "tempfile.py")
TINY = {"vocabulary": 400, "hidden": 32, "layers": 2, "ffn": 48, "batch": 8, "context": 32, "steps": 25}
TINY["learning_rate"] = 5e-3


def tiny_settings():
    return {name: msgspec.structs.replace(settings, **TINY) for name, settings in SETTINGS.items()}


def copy_library(folder):
    """Some modules of the real library, and a few topics."""
    real = Path(sysconfig.get_path("stdlib"))
    for name in MODULES:
        copy = shutil.copytree if (real / name).is_dir() else shutil.copy
        copy(real / name, folder / name)
    (folder / "pydoc_data").mkdir()
    (folder / "pydoc_data" / "topics.py").write_text(
        f"topics = {{'b': {'Sets have members. ' * 3!r}, 'a': {'Lists have an order.'!r}}}\n"
    )
    return folder


def make_tiny(directory, library):
    return {one.name: one for one in make_models(directory, settings=tiny_settings(), library=library)}
