"""Which implementation a device gets, and when it is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.attention import choose, cpu_paged, torch_paged

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("device", "module"), [("cpu", cpu_paged), ("meta", torch_paged), ("mps", torch_paged)])
def test_a_device_gets_its_own(device, module):
    attention = choose(device)
    assert attention.paged_attention is module.paged_attention
    assert attention.store_kv is module.store_kv


def test_a_gpu_gets_the_kernels():
    from serving.attention import triton_paged

    assert choose("cuda").paged_attention is triton_paged.paged_attention


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import serving.attention", {"torch", "numba", "triton"}),
        ("from serving.attention import choose; choose('cpu')", {"triton"}),
        ("from serving.attention import choose; choose('meta')", {"numba", "triton"}),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_chosen(code, absent):
    script = f"{code}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert not absent & set(run.stdout.split())
