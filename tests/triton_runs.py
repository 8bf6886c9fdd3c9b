"""GPU kernels without a GPU, for the tests of each: run by Triton's interpreter, and compiled ahead for every target.

Both in processes of their own: Triton decides at its import which it does.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""That one program may have, by target."""
MOST_REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 512}
"""Of a thread."""


def assert_interpreted(tests: Path) -> None:
    """A file of tests passes where kernels are interpreted."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tests)],
        cwd=ROOT,
        env=_environment(TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def compiled_reports(script: str, wait_s: float = 280) -> dict[str, bytes]:
    """What a script, told its target, writes of the kernels it compiles: all targets at once, a process each."""
    options = {"cwd": ROOT, "env": _environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = {target: subprocess.Popen([sys.executable, "-c", script, target], **options) for target in SHARED_BYTES}
    try:
        said = {target: run.communicate(timeout=wait_s) for target, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    assert not any(run.returncode for run in runs.values()), said
    return {target: out for target, (out, _) in said.items()}


def _environment(**changes: str) -> dict[str, str]:
    # What was compiled once need not be compiled again: Triton's cache goes by what is compiled.
    cache = Path(tempfile.gettempdir()) / f"penstock-triton-{os.getuid()}"
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"} | changes
