"""Multiplying rows with a large matrix on one CPU core: the matrix lies in panels of 16 outputs, so that it is read
once, in order, for all rows.

Decoding is bound by reading weights, and library products are at their worst there: this one reads at the speed of the
memory, and from 16 rows on computes near the core's peak. Weights are float32, or int8 with a scale for each output (a
quarter to be read; rows stay float32, so a row's result depends on nothing but the row).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from placement.compiled import compiled, compiled_apart, entry_point
from serving.attention.cpu_product import MOST_ROWS, WIDTH, multiply_block, multiply_int8_block


def pack(weight: Tensor) -> Tensor:
    """[outputs, inputs] as [panels, inputs, 16], of the same dtype; missing outputs are zeros."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % WIDTH))
    return padded.view(-1, WIDTH, inputs).transpose(1, 2).contiguous()


class Panels:
    """A matrix packed once, with a scale and a bias for each output; `multiply` is called for every token."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor) -> None:
        self.outputs, inputs = weight.shape
        missing = -self.outputs % WIDTH
        self._kept = pack(weight), F.pad(scale, (0, missing)), F.pad(bias, (0, missing))
        panels, scales, biases = self._kept
        self._width = len(scales)
        self.is_int8 = weight.dtype == torch.int8
        self.address = panels.data_ptr(), inputs, len(panels), scales.data_ptr(), biases.data_ptr()
        """Addresses and sizes, as `times` takes them; good as long as this object."""

    def digest(self, before: int = 0) -> int:
        """Of weights, scales and biases, going on from an earlier one: equal for equal matrices."""
        for part in self._kept:
            before = zlib.crc32(part.numpy().data, before)
        return before

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, inputs] times the matrix, times scale, plus bias: [rows, outputs]."""
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = len(x)
        y = torch.empty(rows, self._width)
        times(self.is_int8, x.data_ptr(), 4 * x.stride(0), rows, *self.address, y.data_ptr())
        return y if self._width == self.outputs else y[:, : self.outputs]


@compiled
def multiply(x: Any, rows: int, matrix: Any, is_int8: bool, y: Any) -> None:
    """The first rows of x [rows, inputs] times a matrix, its address [5] as in Panels, into y, whose rows are panels.
    For compiled code."""
    from_x: Any = np.int64(x.ctypes.data)
    to_y: Any = np.int64(y.ctypes.data)
    weights, inputs, panels, scale, bias = matrix
    _times(is_int8, from_x, 4 * x.shape[1], rows, weights, inputs, panels, scale, bias, to_y)


@entry_point
def times(
    is_int8: bool,
    x: int,
    x_stride: int,
    rows: int,
    weights: int,
    inputs: int,
    panels: int,
    scale: int,
    bias: int,
    y: int,
) -> None:
    """x [rows, inputs] at an address, rows a stride of bytes apart, times the matrix into y, whose rows are panels."""
    _times(is_int8, x, x_stride, rows, weights, inputs, panels, scale, bias, y)


@compiled_apart
def _times(
    is_int8: bool,
    x: int,
    x_stride: int,
    rows: int,
    weights: int,
    inputs: int,
    panels: int,
    scale: int,
    bias: int,
    y: int,
) -> None:
    """Panel by panel; the rows in blocks as equal as possible, each of which fetches its part of the next panel."""
    line = WIDTH * 4
    y_stride = panels * line
    panel_bytes = inputs * WIDTH * (1 if is_int8 else 4)
    blocks = -(-rows // MOST_ROWS)
    for index in range(panels):
        panel, s, b = weights + index * panel_bytes, scale + index * line, bias + index * line
        row = 0
        for block in range(blocks):
            count = (rows - row) // (blocks - block)
            at, to = x + row * x_stride, y + row * y_stride + index * line
            ahead, step = panel + panel_bytes + block * panel_bytes // blocks, line // blocks
            if is_int8:
                multiply_int8_block(count, at, x_stride, panel, inputs, s, b, to, y_stride, ahead, step)
            else:
                multiply_block(count, at, x_stride, panel, inputs, s, b, to, y_stride, ahead, step)
            row += count
