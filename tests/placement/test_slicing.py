"""Stage slicing against every possible cut, and against numbers worked out by hand."""

from itertools import combinations, pairwise
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.costs.slicing import slice_stages
from placement.errors import InfeasibleError, InputError

# Whole numbers: sums are exact, so that equal means equal.
AMOUNTS = st.integers(0, 6)


@st.composite
def worlds(draw):
    """Arguments of slice_stages for up to 7 layers; memory limits absent, shared or per stage."""
    layers = draw(st.integers(1, 7))
    stages = draw(st.integers(1, layers))
    amounts = st.lists(AMOUNTS, min_size=layers, max_size=layers)
    limits = st.integers(3, 20)
    limit = draw(st.none() | limits | st.lists(limits, min_size=stages, max_size=stages))
    transfer = draw(st.none() | st.lists(AMOUNTS, min_size=layers - 1, max_size=layers - 1))
    return draw(amounts), draw(amounts), stages, transfer, limit


def every_cut(latency, memory, stages, transfer, limit):
    """(slowest, transfers, sum of squared memory, boundaries) of each cut that fits."""
    rooms = np.broadcast_to(np.inf if limit is None else np.asarray(limit), (stages,))
    for inner in combinations(range(1, len(latency)), stages - 1):
        bounds = (0, *inner, len(latency))
        parts = list(pairwise(bounds))
        received = [transfer[start - 1] if start and transfer else 0 for start, _ in parts]
        used = [sum(memory[start:end]) for start, end in parts]
        if all(amount <= room for amount, room in zip(used, rooms, strict=True)):
            times = [sum(latency[start:end]) + extra for (start, end), extra in zip(parts, received, strict=True)]
            yield max(times), sum(received), sum(amount**2 for amount in used), bounds


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_no_cut_is_better(world):
    latency, memory, stages, transfer, limit = world
    cuts = {bounds: measures for *measures, bounds in every_cut(*world)}
    if not cuts:
        with pytest.raises(InfeasibleError):
            slice_stages(latency, memory, stages, transfer_s=transfer, device_memory_bytes=limit)
        return
    found = slice_stages(latency, memory, stages, transfer_s=transfer, device_memory_bytes=limit)
    assert cuts[tuple(found.boundaries.tolist())] == min(cuts.values())
    assert found.slowest_s == min(cuts.values())[0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=8), st.data())
def test_real_latencies_reach_the_best_slowest_stage(latency, data):
    stages = data.draw(st.integers(1, len(latency)))
    best = min(slowest for slowest, *_ in every_cut(latency, latency, stages, None, None))
    assert slice_stages(latency, latency, stages).slowest_s == pytest.approx(best, rel=1e-9)


def test_worked_example():
    cut = slice_stages([1, 2, 3, 4, 5], [10, 10, 10, 10, 10], 3, transfer_s=[0.5, 0.5, 0.5, 0.5])
    assert cut.boundaries.tolist() == [0, 3, 4, 5]
    assert cut.stage_latency_s.tolist() == [6, 4.5, 5.5]
    assert cut.stage_memory_bytes.tolist() == [30, 10, 10]
    assert cut.slowest_s == 6


def test_memory_moves_a_cut_that_latency_alone_would_choose():
    assert slice_stages([1, 1, 1, 1], [9, 1, 1, 1], 2).boundaries.tolist() == [0, 2, 4]
    tight = slice_stages([1, 1, 1, 1], [9, 1, 1, 1], 2, device_memory_bytes=9)
    assert tight.boundaries.tolist() == [0, 1, 4]
    uneven = slice_stages([1, 1, 1, 1], [1, 1, 1, 1], 2, device_memory_bytes=[1, 8])
    assert uneven.boundaries.tolist() == [0, 1, 4]


def test_equal_cuts_are_told_apart_by_transfers_then_by_memory():
    # The first layer rules; where the rest is cut is free to choose.
    latency, memory = [10, 1, 1, 1, 1], [1, 1, 1, 1, 5]
    assert slice_stages(latency, memory, 3).boundaries.tolist() == [0, 1, 4, 5]
    cheap = slice_stages(latency, memory, 3, transfer_s=[1, 0, 1, 1])
    assert cheap.boundaries.tolist() == [0, 1, 2, 5]


def test_equal_layers_are_dealt_evenly_in_spite_of_rounding():
    cut = slice_stages([0.1] * 48, [1.0] * 48, 16)
    assert np.diff(cut.boundaries).tolist() == [3] * 16
    # 0.1 + 0.1 is a little more at the end of the sum than at its beginning: memory decides all the same.
    assert slice_stages([0.1] * 3, [9, 1, 1], 2).boundaries.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("latency", "memory", "stages", "more", "error", "says"),
    [
        ([1, 1], [1, 1], 3, {}, InputError, "2 layers cannot be cut into 3 stages; 1 to 2 are possible"),
        ([1, 1], [1, 1], 0, {}, InputError, "2 layers cannot be cut into 0 stages; 1 to 2 are possible"),
        ([], [], 1, {}, InputError, "layer latency is empty; a model has at least one layer"),
        (
            [1, -1],
            [1, 1],
            1,
            {},
            InputError,
            "layer latency 1 is -1.0; it must be a finite number of 0 or more",
        ),
        ([1, 1], [1], 1, {}, InputError, r"layer memory has the form \[1\]; it must be a list of 2 numbers"),
        (
            [1, 1],
            [1, 1],
            2,
            {"transfer_s": [1, 1]},
            InputError,
            r"transfer has the form \[2\]; it must be a list of 1",
        ),
        ([1, 1], [1, 1], 2, {"device_memory_bytes": [1, 1, 1]}, InputError, "one number or 2 are needed"),
        (
            [1, 1],
            [1, 7],
            2,
            {"device_memory_bytes": 5},
            InfeasibleError,
            "layer 1 alone needs 7 bytes, a stage has only 5",
        ),
        (
            [1, 1, 1],
            [4, 4, 4],
            2,
            {"device_memory_bytes": 5},
            InfeasibleError,
            "layers need 12 bytes, 2 stages have only 10",
        ),
        (
            [1, 1, 1],
            [4, 4, 4],
            2,
            {"device_memory_bytes": 7},
            InfeasibleError,
            "no cut into 2 consecutive stages",
        ),
    ],
)
def test_errors_are_one_line_that_names_the_limit(latency, memory, stages, more, error, says):
    with pytest.raises(error, match=says) as raised:
        slice_stages(latency, memory, stages, **more)
    assert "\n" not in str(raised.value)


@pytest.mark.alone
def test_large_models_are_cut_quickly():
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(3):
        start = perf_counter()
        slice_stages(rng.random(200), rng.random(200), 64, transfer_s=rng.random(199) / 10, device_memory_bytes=6)
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.1  # about 0.02 s alone on one core
