"""Steps of attention as LLVM vectors of eight floats, unrolled for the size of a head: what compiled loops call.

All take addresses, as integers, and `vectors`: a tuple as long as a head has vectors, so that its type tells how many.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

LANES = 8
HALF = LANES // 2  # keys of a tile of two queries
VECTOR_BYTES = 4 * LANES

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_LINE = 64


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, ir.Constant(address.type, offset)), kind.as_pointer())


def _load(builder: Any, address: Any, offset: int) -> Any:
    return builder.load(_at(builder, address, offset, _VECTOR), align=4)


def _store(builder: Any, vector: Any, address: Any, offset: int) -> None:
    builder.store(vector, _at(builder, address, offset, vector.type), align=4)


def _spread(builder: Any, address: Any, offset: int) -> Any:
    """The float at an address, in all lanes."""
    return _in_all_lanes(builder, builder.load(_at(builder, address, offset, _FLOAT), align=4))


def _in_all_lanes(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(_INT, 0))
    return _shuffle(builder, first, nothing, [0] * LANES)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """The sums of eight vectors in one, by a tree of shuffles: a third of the work of eight sums of their own."""
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    pairs = [_fold(builder, vectors[i], vectors[i + 1], low, high) for i in range(0, LANES, 2)]
    low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    quads = [_fold(builder, pairs[i], pairs[i + 1], low, high) for i in (0, 2)]
    return _fold(builder, quads[0], quads[1], [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


def _fold(builder: Any, a: Any, b: Any, low: list[int], high: list[int]) -> Any:
    return builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high))


def _scorer(rows: int) -> Any:
    """Score `rows` queries, one head's row apart, with the next keys: eight scores, a stride apart for each query."""
    keys = LANES // rows

    @intrinsic
    def score(_: Any, queries: Any, stride: Any, key: Any, scores: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            queries, stride, key, scores, _ = arguments
            row = vectors.count * VECTOR_BYTES
            sums: list[Any] = [ir.Constant(_VECTOR, [-0.0] * LANES)] * LANES
            for at in range(0, row, VECTOR_BYTES):
                query = [_load(builder, queries, r * row + at) for r in range(rows)]
                for n in range(keys):
                    part = _load(builder, key, n * row + at)
                    for r in range(rows):
                        sums[r * keys + n] = _multiply_add(builder, query[r], part, sums[r * keys + n])
            total = _sums(builder, sums)
            for r in range(rows):
                of_row = _shuffle(builder, total, total, list(range(r * keys, r * keys + keys)))
                _store(builder, of_row, builder.add(scores, builder.mul(stride, ir.Constant(stride.type, r))), 0)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64, vectors), generate

    return score


def _mixer(rows: int, keys: int) -> Any:
    """Add `keys` values, weighed, to the mixes of `rows` heads; a tile of eight vectors stays in registers."""

    @intrinsic
    def mix(_: Any, weights: Any, stride: Any, values: Any, mixed: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, stride, values, mixed, _ = arguments
            row = vectors.count * VECTOR_BYTES
            of_row = [builder.add(weights, builder.mul(stride, ir.Constant(stride.type, r))) for r in range(rows)]
            width = LANES // rows * VECTOR_BYTES
            for begin in range(0, row, width):
                columns = range(begin, min(row, begin + width), VECTOR_BYTES)
                tile = {(r, at): _load(builder, mixed, r * row + at) for r in range(rows) for at in columns}
                for n in range(keys):
                    weight = [_spread(builder, address, 4 * n) for address in of_row]
                    for at in columns:
                        value = _load(builder, values, n * row + at)
                        for r in range(rows):
                            tile[r, at] = _multiply_add(builder, weight[r], value, tile[r, at])
                for (r, at), vector in tile.items():
                    _store(builder, vector, mixed, r * row + at)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64, vectors), generate

    return mix


@intrinsic
def _scale_row(_: Any, source: Any, factor: Any, target: Any, vectors: Any) -> Any:
    """Write one head's row, times a factor, elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, factor, target, _ = arguments
        factors = _in_all_lanes(builder, factor)
        for at in range(0, vectors.count * VECTOR_BYTES, VECTOR_BYTES):
            _store(builder, builder.fmul(_load(builder, source, at), factors), target, at)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, vectors), generate


def _layer_out(width: int) -> Any:
    """Write one head's row elsewhere in pieces of `width` floats, a stride of bytes apart."""

    @intrinsic
    def lay(_: Any, source: Any, target: Any, stride: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target, stride, _ = arguments
            kind = ir.VectorType(_FLOAT, width)
            for at in range(0, vectors.count * VECTOR_BYTES, 4 * width):
                _store(builder, builder.load(_at(builder, source, at, kind), align=4), target, 0)
                target = builder.add(target, stride)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, vectors), generate

    return lay


def _prefetcher(rows: int) -> Any:
    """Ask for the lines of `rows` rows of a head from an address on."""

    @intrinsic
    def prefetch(_: Any, address: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
            ask = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            for at in range(0, rows * vectors.count * VECTOR_BYTES, _LINE):
                line = _at(builder, arguments[0], at, ir.IntType(8))
                builder.call(ask, [line, *(ir.Constant(_INT, n) for n in (0, 3, 1))])  # to read, into all caches, data
            return context.get_dummy_value()

        return types.void(types.int64, vectors), generate

    return prefetch


score_one, score_two = _scorer(1), _scorer(2)
mix_one, mix_two, mix_one_key = _mixer(1, LANES), _mixer(2, LANES), _mixer(1, 1)
lay_column, lay_pieces = _layer_out(1), _layer_out(2 * LANES)
prefetch = _prefetcher(HALF)
scale_row: Any = _scale_row
