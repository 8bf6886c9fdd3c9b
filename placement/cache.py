"""Where what can be made again is kept for the next time: compiled code, profiles, plans, small models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """PENSTOCK_CACHE moves it."""
    home = os.environ.get("PENSTOCK_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "penstock" / name
