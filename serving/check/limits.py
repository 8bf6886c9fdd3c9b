"""What torch reaches on a device: bytes copied and numbers multiplied a second. Kernels are set beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Limits:
    bytes_per_s: float
    flops: float


def seconds_of(work: Callable[[], object], where: torch.device, times: int = 10) -> float:
    """The best of some runs, after one that may compile."""
    work()
    best = float("inf")
    for _ in range(times):
        _wait(where)
        began = time.perf_counter()
        work()
        _wait(where)
        best = min(best, time.perf_counter() - began)
    return best


def measure_limits(where: torch.device, dtype: torch.dtype) -> Limits:
    is_cpu = where.type == "cpu"
    source = torch.ones((64 if is_cpu else 1024) * 2**20 // 4, device=where)
    target = torch.empty_like(source)
    copying_s = seconds_of(lambda: target.copy_(source), where)
    side = 1024 if is_cpu else 8192
    left = torch.ones(side, side, device=where, dtype=dtype)
    multiplying_s = seconds_of(lambda: left @ left, where)
    return Limits(2 * source.nbytes / copying_s, 2 * side**3 / multiplying_s)


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()
