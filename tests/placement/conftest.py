"""What all tests of placement share."""

import sys
from pathlib import Path

# Helpers of the tests are imported as tests.placement.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
