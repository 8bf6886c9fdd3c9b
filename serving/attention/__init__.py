"""Paged attention: one signature, three implementations; a device's kind says which one runs.

torch_paged   the twin in plain torch: what the others must compute
cpu_paged     one CPU core, fp32
triton_paged  GPUs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Attention", "choose"]


@dataclass(frozen=True)
class Attention:
    """What a layer calls: `store_kv` first, then `paged_attention`; see torch_paged for shapes and meaning."""

    paged_attention: Callable[..., Tensor]
    store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def choose(device_type: str) -> Attention:
    """The fastest implementation for a torch device type; the twin for one without kernels of its own."""
    if device_type == "cpu":
        from serving.attention import cpu_paged

        return Attention(cpu_paged.paged_attention, cpu_paged.store_kv)
    if device_type == "cuda":
        from serving.attention import triton_paged

        return Attention(triton_paged.paged_attention, triton_paged.store_kv)
    from serving.attention import torch_paged

    return Attention(torch_paged.paged_attention, torch_paged.store_kv)
