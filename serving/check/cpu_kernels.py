"""The kernels of a processor's core against their torch twin, and their speed against torch's copy and product."""

from __future__ import annotations

from typing import Any

import torch

from serving.check.attention_case import CORE, twin
from serving.check.kernels import Case, judge
from serving.check.limits import measure_limits


def check_cpu_kernels(device: str) -> list[dict[str, Any]]:
    """In the errand's process."""
    from serving.attention import choose

    where, dtype = torch.device("cpu"), torch.float32
    limits, ours = measure_limits(where, dtype), choose("cpu")
    found = []
    for shape in CORE:
        step = shape.make(where, dtype)
        case = Case(
            f"core attention {shape.name}",
            lambda step=step: step.run(ours),  # type: ignore[misc]
            lambda step=step: step.run(twin()),  # type: ignore[misc]
            shape.bytes_read(4),
            shape.flops,
        )
        found.append(judge(case, where, dtype, limits))
    figures = {"GB_per_s": round(limits.bytes_per_s / 1e9, 2), "TFLOP_per_s": round(limits.flops / 1e12, 4)}
    found.append({"what": "core itself", "holds": True, "note": "torch copies, torch multiplies", "figures": figures})
    return found
