"""A benchmark's ranks: processes of its own module that measure together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any


def run_ranks(
    module: str, arguments: list[str], ranks: int, limit_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Each is told its --rank and the --place where all meet. Gives what rank 0 printed."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", module, *arguments, "--place", place]
        variables = os.environ | (environment or {})
        started = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, env=variables)
            for rank in range(ranks)
        ]
        try:
            printed = [rank.communicate(timeout=limit_s)[0] for rank in started]
        finally:
            for rank in started:
                rank.kill()
    if any(rank.returncode for rank in started):
        raise SystemExit("a rank failed; what it said is above")
    return json.loads(printed[0])
