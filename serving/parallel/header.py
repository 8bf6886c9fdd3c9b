"""What travels ahead of a tensor: its dtype and shape, as ten integers."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_DIMENSIONS = 8
WORDS = 2 + MOST_DIMENSIONS
DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def describe(tensor: Tensor) -> tuple[int, ...]:
    unused = MOST_DIMENSIONS - tensor.dim()
    if tensor.dtype not in DTYPES or unused < 0:
        raise ValueError(f"a channel takes up to {MOST_DIMENSIONS} dimensions, not {tensor.dim()} of {tensor.dtype}")
    return (DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *(0,) * unused)


def dtype_and_shape(words: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...]]:
    return DTYPES[words[0]], words[2 : 2 + words[1]]
