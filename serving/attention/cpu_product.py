"""A few rows times one panel of a matrix, 16 outputs wide, as LLVM vectors: the inner loop of every product on a CPU.

The sums of up to eight rows stay in registers. Whatever the rows, an output is one sum in the order of the inputs: a
row's result depends on nothing but the row.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 16
MOST_ROWS = 8 if binding.get_host_cpu_features().get("avx512f") else 6
"""Sums that stay in registers: 16 outputs are one of 32 vectors with AVX-512, and two of 16 with AVX2."""
FEW_ROWS = 2
"""Up to here the time goes into reading, and the processor reads fastest half a line at a time and left alone; with
more rows it has to be asked for what comes next (measured: 1.3 x at four rows, 2 x at eight)."""

_helpers: Any = cgutils
_types: Any = types
_FLOAT, _LONG, _INT, _BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)


def _make_block(is_int8: bool, prefetches: bool) -> Any:
    """y [rows, 16] = x [rows, inputs] times the panel [inputs, 16], times scale [16], plus bias [16].

    Rows are at most MOST_ROWS. All but sizes are addresses, as integers, and strides are bytes between rows; meanwhile
    it asks for what lies at `ahead`, so many bytes further for each input.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        after = builder.append_basic_block("after")
        choice = builder.switch(arguments[0], after)
        for rows in range(1, MOST_ROWS + 1):
            case = builder.append_basic_block(f"rows{rows}")
            choice.add_case(_constant(rows), case)
            builder.position_at_end(case)
            _generate(builder, rows, is_int8, prefetches and rows > FEW_ROWS, *arguments[1:])
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    def block(
        context: Any,
        rows: Any,
        x: Any,
        x_stride: Any,
        panel: Any,
        inputs: Any,
        scale: Any,
        bias: Any,
        y: Any,
        y_stride: Any,
        ahead: Any,
        ahead_step: Any,
    ) -> Any:
        return _types.void(*[_types.intp] * 11), generate

    return intrinsic(block)


def _generate(
    builder: Any,
    rows: int,
    is_int8: bool,
    prefetches: bool,
    x: Any,
    x_stride: Any,
    panel: Any,
    inputs: Any,
    scale: Any,
    bias: Any,
    y: Any,
    y_stride: Any,
    ahead: Any,
    ahead_step: Any,
) -> None:
    vector = ir.VectorType(_FLOAT, WIDTH if rows > FEW_ROWS else WIDTH // 2)
    parts = range(WIDTH // vector.count)
    starts = [builder.add(x, builder.mul(x_stride, _constant(row))) for row in range(rows)]
    before = builder.block
    loop = builder.append_basic_block("inputs")
    after = builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    place = builder.phi(_LONG)
    place.add_incoming(_constant(0), before)
    sums = [[builder.phi(vector) for _ in parts] for _ in range(rows)]
    weights = _load_weights(builder, panel, place, vector, is_int8)
    if prefetches:
        _prefetch(builder, builder.add(ahead, builder.mul(place, ahead_step)))
    offset = builder.mul(place, _constant(4))
    values = [_spread(builder, _load_float(builder, builder.add(start, offset)), vector) for start in starts]
    added = [
        [_fma(builder, value, weight, total) for weight, total in zip(weights, row, strict=True)]
        for value, row in zip(values, sums, strict=True)
    ]
    following = builder.add(place, _constant(1))
    place.add_incoming(following, loop)
    for total, new in zip(chain(*sums), chain(*added), strict=True):
        total.add_incoming(ir.Constant(vector, [0.0] * vector.count), before)
        total.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, inputs), loop, after)
    builder.position_at_end(after)
    scales, biases = _load_parts(builder, scale, vector), _load_parts(builder, bias, vector)
    for row, new in enumerate(added):
        out = builder.inttoptr(builder.add(y, builder.mul(y_stride, _constant(row))), vector.as_pointer())
        for part in parts:
            result = _fma(builder, new[part], scales[part], biases[part])
            builder.store(result, builder.gep(out, [_constant(part)]), align=4)


def _constant(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _load_weights(builder: Any, panel: Any, place: Any, vector: Any, is_int8: bool) -> list[Any]:
    address = builder.add(panel, builder.mul(place, _constant(WIDTH * (1 if is_int8 else 4))))
    if not is_int8:
        return _load_parts(builder, address, vector)
    small = _load_parts(builder, address, ir.VectorType(_BYTE, vector.count))
    return [builder.sitofp(builder.sext(part, ir.VectorType(_INT, vector.count)), vector) for part in small]


def _load_parts(builder: Any, address: Any, vector: Any) -> list[Any]:
    """WIDTH numbers as vectors."""
    start = builder.inttoptr(address, vector.as_pointer())
    return [builder.load(builder.gep(start, [_constant(part)]), align=1) for part in range(WIDTH // vector.count)]


def _load_float(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _FLOAT.as_pointer()), align=4)


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for a line into the second cache."""
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    ask = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(ask, [builder.inttoptr(address, pointer), *(ir.Constant(_INT, n) for n in (0, 2, 1))])


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_INT, 0))
    lanes = ir.VectorType(_INT, vector.count)
    return builder.shuffle_vector(first, nothing, ir.Constant(lanes, [0] * vector.count))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.v{a.type.count}f32"
    return builder.call(_helpers.get_or_insert_function(builder.module, kind, name), [a, b, c])


multiply_block = _make_block(is_int8=False, prefetches=True)
multiply_int8_block = _make_block(is_int8=True, prefetches=False)  # a quarter of the bytes: nothing to wait for
multiply_near_block = _make_block(is_int8=False, prefetches=False)  # of a panel that lies in a cache
