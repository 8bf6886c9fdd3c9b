"""The scheduler and its blocks: laws that hold for any requests, cancellations and preemptions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engine.blocks import BlockPool, block_keys
from serving.engine.scheduler import Lane, Limits, Scheduler
from serving.engine.sequence import Sequence
from serving.sampling import SamplingParams

SIZE = 4


def make_sequence(name, prompt, output=8):
    params = SamplingParams(max_tokens=output)
    return Sequence(name, 0, list(prompt), params, 0, frozenset(), output)


def make_scheduler(blocks, lanes=1, step_tokens=16, sequences=256):
    return Scheduler(BlockPool(blocks, SIZE), Limits(step_tokens, sequences), [Lane() for _ in range(lanes)])


def finish_step(scheduler, lane, chunks, token=1):
    """Sample a token for whoever is due; ended sequences leave."""
    ended = []
    for chunk in chunks:
        if chunk.samples and chunk.sequence.accept(token) is not None:
            scheduler.finish(lane, chunk.sequence)
            ended.append(chunk.sequence)
    return ended


def test_a_prompt_is_cut_to_the_step_and_everybody_decodes_beside_it():
    scheduler = make_scheduler(64)
    (lane,) = scheduler.lanes
    scheduler.waiting.append(make_sequence("a", [1, 2, 3]))
    first = scheduler.schedule(lane)
    assert [(c.start, c.count, c.samples) for c in first] == [(0, 3, True)]
    finish_step(scheduler, lane, first)
    scheduler.waiting.append(make_sequence("b", range(40)))
    second = scheduler.schedule(lane)
    assert [(c.sequence.request, c.start, c.count, c.samples) for c in second] == [
        ("a", 3, 1, True),
        ("b", 0, 15, False),
    ]


def test_lanes_share_who_waits():
    scheduler = make_scheduler(64, lanes=2, step_tokens=100)
    for name in "abcd":
        scheduler.waiting.append(make_sequence(name, [ord(name), 2, 3]))
    assert [len(scheduler.schedule(lane)) for lane in scheduler.lanes] == [2, 2]


def test_the_youngest_is_preempted_and_comes_back_with_what_it_had():
    scheduler = make_scheduler(4)
    (lane,) = scheduler.lanes
    old, young = make_sequence("old", [1, 2, 3, 4, 5, 6], 8), make_sequence("young", [7, 8, 9], 8)
    scheduler.waiting.extend([old, young])
    while young not in scheduler.waiting or not young.output_ids:
        finish_step(scheduler, lane, scheduler.schedule(lane))
    kept = list(young.output_ids)
    assert scheduler.preemptions == 1
    assert young.computed == 0
    while old in lane.running:
        finish_step(scheduler, lane, scheduler.schedule(lane))
    chunk = scheduler.schedule(lane)[0]
    assert chunk.sequence is young
    assert chunk.start + chunk.count == len(young) == 3 + len(kept)


def test_a_prefix_is_computed_once_even_within_one_step():
    scheduler = make_scheduler(64, step_tokens=100)
    (lane,) = scheduler.lanes
    scheduler.waiting.extend([make_sequence("a", range(10)), make_sequence("b", [*range(8), 99, 98, 97])])
    first, second = scheduler.schedule(lane)
    assert (first.start, first.count) == (0, 10)
    assert (second.start, second.count) == (8, 3)
    assert first.sequence.blocks[:2] == second.sequence.blocks[:2]
    assert second.sequence.cached_prompt == 8


def test_a_prompt_that_is_known_as_a_whole_still_computes_one_token():
    scheduler = make_scheduler(64, step_tokens=100)
    (lane,) = scheduler.lanes
    one = make_sequence("a", range(8), output=1)
    scheduler.waiting.append(one)
    finish_step(scheduler, lane, scheduler.schedule(lane))
    again = make_sequence("b", range(8), output=1)
    scheduler.waiting.append(again)
    (chunk,) = scheduler.schedule(lane)
    assert (chunk.start, chunk.count, chunk.samples) == (4, 4, True)


def test_keys_depend_on_everything_before():
    one = block_keys([1, 2, 3, 4, 5, 6, 7, 8], [], 2, SIZE)
    other = block_keys([9, 2, 3, 4, 5, 6, 7, 8], [], 2, SIZE)
    assert one[1] != other[1]
    assert block_keys([1, 2, 3, 4, 5, 6, 7, 8], one[:1], 2, SIZE) == one


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    blocks=st.integers(2, 12),
    lanes=st.integers(1, 3),
    step_tokens=st.integers(1, 20),
    requests=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(1, 10)), min_size=1, max_size=12
    ),
)
def test_any_mix_ends_and_leaks_nothing(data, blocks, lanes, step_tokens, requests):
    scheduler = make_scheduler(blocks, lanes, step_tokens, sequences=4)
    room = blocks * SIZE
    for index, (prompt, output) in enumerate(requests):
        prompt = prompt[: room - 1]
        scheduler.waiting.append(make_sequence(f"r{index}", prompt, min(output, room - len(prompt))))
    left = {one.request for one in scheduler.waiting}
    idle = 0
    while left:
        lane = data.draw(st.sampled_from(scheduler.lanes))
        chunks = scheduler.schedule(lane) if scheduler.has_work(lane) else []
        idle = 0 if chunks else idle + 1
        assert idle < 200, "nothing can run any more"
        assert sum(chunk.count for chunk in chunks) <= max(step_tokens, len(lane.running))
        for chunk in chunks:
            one = chunk.sequence
            assert one.computed <= len(one.blocks) * SIZE
            assert chunk.samples == (one.computed == len(one))
        check_blocks(scheduler)
        left -= {one.request for one in finish_step(scheduler, lane, chunks, data.draw(st.integers(0, 1)))}
        if lane.running and data.draw(st.integers(0, 9)) == 0:
            gone = data.draw(st.sampled_from(lane.running))
            scheduler.finish(lane, gone)
            left.discard(gone.request)
    assert scheduler.pool.used == 0
    assert scheduler.pool.available == blocks


def check_blocks(scheduler):
    """Who holds a block is counted right, and two sequences share a block only where their tokens agree."""
    held: dict[int, list] = {}
    for lane in scheduler.lanes:
        for one in lane.running:
            for place, block in enumerate(one.blocks):
                held.setdefault(block, []).append(one.tokens[: (place + 1) * SIZE])
    assert scheduler.pool.used == len(held)
    for prefixes in held.values():
        assert all(prefix == prefixes[0] for prefix in prefixes)
