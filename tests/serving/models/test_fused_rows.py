"""The row kernels compiled ahead of time; `tests/serving/check` runs them interpreted against their twins."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
import msgspec
from serving.models.fused_report import report
sys.stdout.buffer.write(msgspec.json.encode(report(sys.argv[1])))
"""


@pytest.mark.parametrize(("target", "most"), [("sm_80", 255), ("sm_90", 255), ("sm_100", 255), ("gfx942", 512)])
def test_no_kernel_spills(target, most):
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = Path(tempfile.gettempdir()) / f"penstock-triton-{os.getuid()}"
    environment = kept | {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, target]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    kernels = msgspec.json.decode(done.stdout)
    assert {kernel[0] for kernel in kernels} == {"rope", "rms norm"}
    for name, dtype, size, (_, registers, _, spilled) in kernels:
        assert spilled == 0, (name, dtype, size)
        assert 8 <= registers <= most, (name, dtype, size)
