"""The command that makes a report, as it was typed."""

from __future__ import annotations

import shlex
import sys


def command_line() -> str:
    return shlex.join(["penstock", *sys.argv[1:]])
