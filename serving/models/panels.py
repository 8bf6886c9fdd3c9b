"""Multiplying few rows with a large matrix on one CPU core: the matrix lies in panels of 16 outputs, so that it is read
once, in order, while the sums of up to six rows stay in registers.

Decoding is bound by reading weights, and library products are at their worst there: this one reads at the speed of the
memory for up to four rows. Weights are float32, or int8 with a scale for each output (a quarter to be read; rows stay
float32, so a row's result depends on nothing but the row).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from placement.compiled import entry_point

WIDTH = 16
LANES = 8
MOST_ROWS = 6
"""Sums of six rows and 16 outputs fill twelve of the sixteen vector registers that every x86-64 with AVX2 has."""

_helpers: Any = cgutils
_types: Any = types
_FLOAT, _LONG, _INT, _BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
_VECTOR = ir.VectorType(_FLOAT, LANES)


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
        self._times = _times_int8 if weight.dtype == torch.int8 else _times_float
        tables = scales.data_ptr(), biases.data_ptr()
        self._matrix = panels.data_ptr(), inputs, len(panels), *tables

    def multiply(self, x: Tensor) -> Tensor:
        """x [rows, inputs] times the matrix, times scale, plus bias: [rows, outputs]."""
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = len(x)
        y = torch.empty(rows, self._width)
        self._times(x.data_ptr(), 4 * x.stride(0), rows, *self._matrix, y.data_ptr())
        return y if self._width == self.outputs else y[:, : self.outputs]


def _constant(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _make_block(rows: int, is_int8: bool) -> Any:
    """Code for `rows` rows and one panel: (x, bytes between its rows, panel, inputs, scale, bias, y, bytes between its
    rows), all addresses as integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_stride, panel, inputs, scale, bias, y, y_stride = arguments
        starts = [builder.add(x, builder.mul(x_stride, _constant(row))) for row in range(rows)]
        before = builder.block
        loop = builder.append_basic_block("inputs")
        after = builder.append_basic_block("sums")
        builder.branch(loop)
        builder.position_at_end(loop)
        place = builder.phi(_LONG)
        place.add_incoming(_constant(0), before)
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        sums = [[builder.phi(_VECTOR) for _ in range(2)] for _ in range(rows)]
        weights = _load_weights(builder, panel, place, is_int8)
        offset = builder.mul(place, _constant(4))
        added: list[list[Any]] = []
        for start in starts:
            value = builder.load(builder.inttoptr(builder.add(start, offset), _FLOAT.as_pointer()), align=4)
            spread = _spread(builder, value)
            row = sums[len(added)]
            added.append([_fma(builder, spread, weights[half], row[half]) for half in range(2)])
        following = builder.add(place, _constant(1))
        place.add_incoming(following, loop)
        for row, new in zip(sums, added, strict=True):
            for phi, value in zip(row, new, strict=True):
                phi.add_incoming(zero, before)
                phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, after)
        builder.position_at_end(after)
        scales, biases = _load_pair(builder, scale), _load_pair(builder, bias)
        for number, new in enumerate(added):
            out = builder.inttoptr(builder.add(y, builder.mul(y_stride, _constant(number))), _VECTOR.as_pointer())
            for half, value in enumerate(new):
                result = _fma(builder, value, scales[half], biases[half])
                builder.store(result, builder.gep(out, [_constant(half)]), align=4)
        return context.get_dummy_value()

    def block(
        context: Any, x: Any, x_stride: Any, panel: Any, inputs: Any, scale: Any, bias: Any, y: Any, y_stride: Any
    ) -> Any:
        return _types.void(*[_types.intp] * 8), generate

    return intrinsic(block)


def _load_weights(builder: Any, panel: Any, place: Any, is_int8: bool) -> list[Any]:
    size = 1 if is_int8 else 4
    address = builder.add(panel, builder.mul(place, _constant(WIDTH * size)))
    if not is_int8:
        return _load_pair(builder, address)
    whole = ir.VectorType(_BYTE, LANES)
    start = builder.inttoptr(address, whole.as_pointer())
    halves = [builder.load(builder.gep(start, [_constant(half)]), align=8) for half in range(2)]
    return [builder.sitofp(builder.sext(half, ir.VectorType(_INT, LANES)), _VECTOR) for half in halves]


def _load_pair(builder: Any, address: Any) -> list[Any]:
    start = builder.inttoptr(address, _VECTOR.as_pointer())
    return [builder.load(builder.gep(start, [_constant(half)]), align=4) for half in range(2)]


def _spread(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(_helpers.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c])


_float1, _float2, _float3, _float4, _float5, _float6 = (_make_block(rows, False) for rows in range(1, 7))
_int1, _int2, _int3, _int4, _int5, _int6 = (_make_block(rows, True) for rows in range(1, 7))


@entry_point
def _times_float(
    x: int, x_stride: int, rows: int, weights: int, inputs: int, panels: int, scale: int, bias: int, y: int
) -> None:
    """Panel by panel; the rows in blocks as equal as possible, none of more than six."""
    y_stride = panels * WIDTH * 4
    blocks = -(-rows // MOST_ROWS)
    for index in range(panels):
        panel, s, b = weights + index * inputs * WIDTH * 4, scale + index * WIDTH * 4, bias + index * WIDTH * 4
        row = 0
        for block in range(blocks):
            count = (rows - row) // (blocks - block)
            from_x, to_y = x + row * x_stride, y + row * y_stride + index * WIDTH * 4
            if count == 6:
                _float6(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 5:
                _float5(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 4:
                _float4(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 3:
                _float3(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 2:
                _float2(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            else:
                _float1(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            row += count


@entry_point
def _times_int8(
    x: int, x_stride: int, rows: int, weights: int, inputs: int, panels: int, scale: int, bias: int, y: int
) -> None:
    """The same; a panel of many inputs is a quarter as large."""
    y_stride = panels * WIDTH * 4
    blocks = -(-rows // MOST_ROWS)
    for index in range(panels):
        panel, s, b = weights + index * inputs * WIDTH, scale + index * WIDTH * 4, bias + index * WIDTH * 4
        row = 0
        for block in range(blocks):
            count = (rows - row) // (blocks - block)
            from_x, to_y = x + row * x_stride, y + row * y_stride + index * WIDTH * 4
            if count == 6:
                _int6(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 5:
                _int5(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 4:
                _int4(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 3:
                _int3(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            elif count == 2:
                _int2(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            else:
                _int1(from_x, x_stride, panel, inputs, s, b, to_y, y_stride)
            row += count
