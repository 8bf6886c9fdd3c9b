"""Helpers of the tests are imported as tests.serving.…, wherever pytest was started."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
