"""Emulated groups, as their controller sees them: the time that a profile says, and everything else as of real ones."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import InputError
from placement.files import write_json
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from serving.engine.goal import step_load
from serving.sampling import SamplingParams
from serving.worker.emulated_clocks import StageClocks
from serving.worker.emulated_engine import split_batch
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import EmulatedModel, emulate_directory, read_emulated_model
from serving.worker.event_loop import run as run_loop
from serving.worker.group import GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.messages import ModelSpec

COST = StepCost(
    fixed=0.004, weights=0.006, prefill_token=0.0001, prefill_context=1e-6, sequence=0.002, cached_token=1e-5
)
KV_BYTES_PER_TOKEN = 100
EMBED_S = {1: 0.010, 2: 0.016, 4: 0.030}
LATE_S = 0.015
"""Beyond what the group itself knows to be late."""


def generating(*stages, tp=1, **more):
    generation = Generation(stages=stages, kv_bytes_per_token=(KV_BYTES_PER_TOKEN,) * len(stages))
    return ShapeProfile(tp=tp, pp=len(stages), stage_memory=(1,) * len(stages), generation=generation, **more)


def embedding(pp):
    latency = {batch: (seconds / pp,) * pp for batch, seconds in EMBED_S.items()}
    return ShapeProfile(tp=1, pp=pp, stage_memory=(1,) * pp, stage_latency=latency)


def half(cost):
    return StepCost(**{field: getattr(cost, field) / 2 for field in cost.__struct_fields__})


CHAT = EmulatedModel(
    profile=Profile(shapes=(generating(COST), generating(half(COST), half(COST)), generating(COST, tp=2))),
    vocabulary=1000,
    eos_token_ids=(7,),
)
EMBED = EmulatedModel(profile=Profile(shapes=(embedding(1), embedding(2))), width=8, vocabulary=1000)
MODELS = {"chat": CHAT, "embed": EMBED, "slow-load": EmulatedModel(profile=CHAT.profile, load_s=0.2, resume_s=0.1)}


def run(work):
    return run_loop(asyncio.wait_for(work, 60))


@contextlib.asynccontextmanager
async def running(tp=1, pp=1, launcher=None, **options):
    devices = tuple(f"cpu:{core}" for core in range(tp * pp))
    spec = GroupSpec(name="g", devices=devices, tp=tp, pp=pp, **options)
    group = await start_group(spec, launcher or EmulatedLauncher(MODELS))
    try:
        yield group
    finally:
        await group.stop()


def chat(name="chat", tokens=100_000, **options):
    return ModelSpec(name=name, path=name, kv_bytes=tokens * KV_BYTES_PER_TOKEN, **options)


def params(tokens=8, **options):
    return SamplingParams(max_tokens=tokens, **options)


async def collect(group, request, prompt=(1, 2, 3), wishes=None, model="chat"):
    stream = group.generate(request, model, list(prompt), wishes or params())
    return [(time.monotonic(), output) async for output in stream]


def tokens_of(outputs):
    return [output.token for _, output in outputs]


def late_s(group):
    """What a busy machine may add to a time."""
    return LATE_S + group.handles[0].group.worst_lag_s


def gaps(outputs):
    times = [at for at, _ in outputs]
    return [later - sooner for sooner, later in pairwise(times)]


def test_steps_take_what_the_formula_says():
    async def scenario():
        async with running() as group:
            await group.load(chat())
            await collect(group, "warm")
            began = time.monotonic()
            outputs = await collect(group, "one", range(400), params(20))
            return [at - began for at, _ in outputs], late_s(group)

    times, late = run(scenario())
    prefill = COST.seconds(400, 0, 0, 0)
    ends = [prefill + sum(COST.seconds(0, 1, 0, 400 + made) for made in range(count)) for count in range(20)]
    assert all(end - 0.002 <= at <= end + late for at, end in zip(times, ends, strict=True))
    steps = [later - sooner for sooner, later in pairwise(times)]
    assert abs(statistics.median(steps) - COST.seconds(0, 1, 0, 410)) < 0.004


def test_batches_decode_together_and_long_prompts_come_in_chunks():
    async def scenario():
        async with running() as group:
            await group.load(chat(step_tokens=256))
            crowd = [collect(group, f"r{index}", range(index, index + 20), params(10)) for index in range(6)]
            together = await asyncio.gather(*crowd)
            began = time.monotonic()
            long = await collect(group, "long", range(900), params(1))
            return together, long[0][0] - began, late_s(group)

    together, first, late = run(scenario())
    step = COST.seconds(0, 6, 0, 6 * 25)
    assert all(abs(statistics.median(gaps(outputs)) - step) < 0.006 for outputs in together)
    prefill = sum(
        COST.seconds(count, 0, count * start, 0) for start, count in ((0, 256), (256, 256), (512, 256), (768, 132))
    )
    assert prefill - 0.002 <= first <= prefill + late


def test_two_stages_overlap():
    """Half as long stages: one request takes as long as on one stage, many take half as long."""

    async def seconds(pp, requests):
        async with running(pp=pp) as group:
            await group.load(chat())
            began = time.monotonic()
            await asyncio.gather(*(collect(group, f"r{index}", wishes=params(16)) for index in range(requests)))
            return time.monotonic() - began

    async def scenario():
        return [await seconds(pp, requests) for pp, requests in ((1, 1), (2, 1), (1, 2), (2, 2))]

    alone, alone_piped, two, two_piped = run(scenario())
    assert abs(alone - alone_piped) < 0.3 * alone
    # On one stage both are in one batch, whose steps are `weights` long: no longer than one's. In two lanes each step
    # of 5 ms a stage overlaps with the other lane's: both are done when one alone would be.
    assert abs(two_piped - alone_piped) < 0.3 * alone_piped
    assert two < 1.5 * alone


def test_two_stages_double_the_throughput_of_batches():
    async def seconds(pp, batches):
        async with running(pp=pp) as group:
            await group.load(ModelSpec(name="embed", path="embed", max_sequences=4))
            began = time.monotonic()
            await asyncio.gather(*(group.infer(str(index), "embed", [[1, 2]] * 4) for index in range(batches)))
            return time.monotonic() - began

    async def scenario():
        return await seconds(1, 16), await seconds(2, 16)

    one, two = run(scenario())
    assert abs(one - 16 * EMBED_S[4]) < 0.1
    assert abs(two - 17 * EMBED_S[4] / 2) < 0.1


@pytest.mark.parametrize(("inputs", "expected"), [(1, 0.010), (3, 0.030), (6, 0.030 + 0.016), (9, 0.070)])
def test_batches_between_and_beyond_those_of_the_profile(inputs, expected):
    async def scenario():
        async with running() as group:
            await group.load(ModelSpec(name="embed", path="embed"))
            times = []
            for repeat in range(5):
                began = time.monotonic()
                values = await group.infer(f"e{repeat}", "embed", [[index, 2, 3] for index in range(inputs)])
                times.append(time.monotonic() - began)
            return times, values, late_s(group)

    times, values, late = run(scenario())
    assert all(expected - 0.002 <= seconds <= expected + late for seconds in times)
    assert values.shape == (inputs, 8)
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1.0, atol=1e-6)
    assert len({row.tobytes() for row in values}) == inputs


@pytest.mark.parametrize("pp", [1, 2])
def test_requests_that_come_together_are_one_batch(pp):
    async def scenario():
        async with running(pp=pp) as group:
            await group.load(ModelSpec(name="embed", path="embed"))
            await asyncio.gather(*(group.infer(f"e{index}", "embed", [[index, 2, 3]]) for index in range(4)))
            return group.states["embed"].busy_s

    assert run(scenario()) == pytest.approx([EMBED_S[4] / pp] * pp)


@given(st.integers(1, 500), st.sets(st.integers(1, 64), min_size=1).map(sorted))
def test_a_split_batch_has_room_for_all_and_no_whole_batch_too_many(inputs, sizes):
    parts = split_batch(inputs, sizes)
    assert sum(parts) >= inputs
    assert all(part == sizes[-1] for part in parts[:-1])
    assert sum(parts[:-1]) < inputs


@given(st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=8))
def test_no_stage_has_two_steps_at_once_and_none_overtakes(steps):
    clocks = StageClocks(3)
    before = [0.0] * 3
    for at, stage_s in enumerate(steps):
        end = clocks.enter(float(at), stage_s)
        starts = [free - seconds for free, seconds in zip(clocks.free, stage_s, strict=True)]
        assert all(start >= free - 1e-9 for start, free in zip(starts, before, strict=True))
        assert starts[0] >= at - 1e-9
        assert starts[1] >= clocks.free[0] - 1e-9
        assert end == clocks.free[-1]
        before = list(clocks.free)


def test_tokens_follow_from_the_seed_and_never_end_an_answer_unless_forced():
    async def scenario():
        async with running() as group:
            await group.load(chat())
            seeded = params(40, seed=11, n=2)
            first, second, other = await asyncio.gather(
                collect(group, "a", wishes=seeded),
                collect(group, "b", wishes=seeded),
                collect(group, "c", wishes=params(40, seed=12)),
            )
            greedy = [await collect(group, f"g{index}", wishes=params(10, temperature=0.0)) for index in range(2)]
            forced = await collect(group, "f", wishes=params(20, min_tokens=3, logit_bias={7: 100.0}))
            stops = await collect(group, "s", wishes=params(60, stop_token_ids=tuple(range(100, 300))))
            with_logprobs = await collect(group, "l", wishes=params(2, logprobs=3))
            return first, second, other, greedy, forced, stops, with_logprobs

    first, second, other, greedy, forced, stops, with_logprobs = run(scenario())

    def answers(outputs):
        return [[output.token for _, output in outputs if output.index == index] for index in (0, 1)]

    assert answers(first) == answers(second)
    assert answers(first)[0] != answers(first)[1]
    assert answers(first)[0] != tokens_of(other)
    assert tokens_of(greedy[0]) == tokens_of(greedy[1])
    assert all(len(one) == 40 and 7 not in one for one in answers(first))
    assert len(set(answers(first)[0])) > 30
    assert tokens_of(forced)[-1] == 7
    assert len(forced) == 4
    assert forced[-1][1].finish == "stop"
    assert stops[-1][1].finish == "length"
    assert all(math.isclose(output.logprobs.logprob, -math.log(1000)) for _, output in with_logprobs)
    assert all(len(output.logprobs.top_ids) == 3 for _, output in with_logprobs)


def test_a_known_prefix_costs_nothing():
    async def scenario():
        async with running() as group:
            await group.load(chat())
            times, cached = [], []
            for request in ("first", "again"):
                began = time.monotonic()
                outputs = await collect(group, request, range(500), params(1))
                times.append(outputs[0][0] - began)
                cached.append(outputs[0][1].cached_prompt)
            return times, cached, late_s(group)

    (cold, warm), cached, late = run(scenario())
    assert cached == [0, 496]
    assert cold > COST.seconds(500, 0, 0, 0) - 0.002
    assert warm < COST.seconds(4, 0, 4 * 496, 0) + late


def test_a_full_cache_preempts_and_everybody_gets_all_tokens():
    """Ten blocks for three sequences that grow to five blocks each: not all can stay."""

    async def scenario():
        async with running() as group:
            facts = await group.load(chat(tokens=160))
            answers = await asyncio.gather(
                *(collect(group, f"r{index}", range(index, index + 30), params(50)) for index in range(3))
            )
            with pytest.raises(RequestFailed, match="at most 159"):
                await collect(group, "long", range(170))
            return facts, answers, group.states["chat"]

    facts, answers, state = run(scenario())
    assert facts == {"blocks": 10, "block_tokens": 16, "emulated": True}
    assert all(len(one) == 50 for one in answers)
    assert state.blocks_used == 0
    # Preempted prompts are run again: longer than three that fit would take.
    ends = sorted(one[-1][0] for one in answers)
    assert ends[-1] - ends[0] > 5 * COST.seconds(0, 1, 0, 50)


def test_requests_that_are_left_free_their_room():
    async def scenario():
        async with running(pp=2) as group:
            await group.load(chat())
            stream = group.generate("left", "chat", [1, 2, 3], params(2000))
            async for _ in stream:
                break
            await stream.aclose()
            waiting = asyncio.create_task(collect(group, "cut", wishes=params(2000)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await collect(group, "after", wishes=params(3))
            return group.states["chat"]

    state = run(scenario())
    assert (state.running, state.waiting, state.blocks_used) == (0, 0, 0)


def test_draining_waits_for_open_requests_and_refuses_new_ones():
    async def scenario():
        async with running() as group:
            await group.load(chat())
            open_one = asyncio.create_task(collect(group, "open", wishes=params(20)))
            await asyncio.sleep(0.03)
            drained = asyncio.create_task(group.drain())
            await asyncio.sleep(0.01)
            assert not drained.done()
            with pytest.raises(RequestFailed) as refused:
                await collect(group, "late")
            assert refused.value.code == "draining"
            await drained
            assert open_one.done() or len(await open_one) == 20

    run(scenario())


def test_steps_go_on_while_a_model_is_loaded():
    async def scenario():
        async with running() as group:
            await group.load(chat())
            talking = asyncio.create_task(collect(group, "one", wishes=params(60)))
            await asyncio.sleep(0.02)
            began = time.monotonic()
            await asyncio.gather(group.load(chat("slow-load")), group.load(ModelSpec(name="embed", path="embed")))
            load_s = time.monotonic() - began
            return gaps(await talking), load_s, late_s(group)

    steps, load_s, late = run(scenario())
    assert load_s >= 0.198
    assert max(steps) < COST.seconds(0, 1, 0, 100) + late


def test_prompts_are_cut_to_the_goal_of_who_decodes():
    async def scenario(**goal):
        async with running() as group:
            await group.load(chat(**goal))
            talking = asyncio.create_task(collect(group, "one", wishes=params(40)))
            await asyncio.sleep(0.02)
            await collect(group, "two", range(400), params(1))
            return max(gaps(await talking)), late_s(group)

    worst, _ = run(scenario())
    kept, late = run(scenario(tpot_s=0.013))
    assert worst > COST.seconds(400, 1, 0, 0) - 0.002
    assert kept < 0.013 + 0.009 + late  # three steps of 10 ms have saved so much


def test_models_are_loaded_suspended_resumed_and_unloaded_in_their_time():
    async def timed(work):
        began = time.monotonic()
        await work
        return time.monotonic() - began

    async def scenario():
        async with running(pp=2) as group:
            load_s = await timed(group.load(chat("slow-load")))
            await group.load(chat())
            crowd = [asyncio.create_task(collect(group, f"r{index}", wishes=params(500))) for index in range(3)]
            await asyncio.sleep(0.05)
            other = asyncio.create_task(collect(group, "other", model="slow-load", wishes=params(500)))
            await asyncio.sleep(0.05)
            await group.suspend("chat")
            for one in crowd:
                with pytest.raises(RequestFailed, match="suspended"):
                    await one
            with pytest.raises(RequestFailed, match="suspended") as refused:
                await collect(group, "no")
            assert refused.value.code == "no-replica"
            assert not other.done()
            await group.resume("chat")
            assert len(await collect(group, "yes")) == 8
            suspend_s = await timed(group.suspend("slow-load"))
            with pytest.raises(RequestFailed, match="suspended"):
                await other
            resume_s = await timed(group.resume("slow-load"))
            await group.unload("slow-load")
            with pytest.raises(RequestFailed, match="not on group"):
                await collect(group, "gone", model="slow-load")
            return load_s, suspend_s, resume_s, late_s(group)

    load_s, suspend_s, resume_s, late = run(scenario())
    assert 0.198 <= load_s < 0.2 + late
    assert 0.098 <= suspend_s < 0.1 + 0.03 + late  # the steps in flight end first
    assert 0.098 <= resume_s < 0.1 + late


def test_what_cannot_be_loaded_or_asked_says_why(tmp_path):
    async def scenario():
        async with running() as group:
            await group.load(chat())
            await group.load(ModelSpec(name="embed", path="embed"))
            for spec, message in (
                (chat(), "already"),
                (ModelSpec(name="x", path="chat", kv_bytes=10), "kv_bytes is 10; a block of its cache takes 1600"),
                (ModelSpec(name="x", path=str(tmp_path / "nowhere.json")), "cannot be read"),
            ):
                with pytest.raises(InputError, match=message):
                    await group.load(spec)
            with pytest.raises(RequestFailed, match="one pass"):
                await collect(group, "bad", model="embed")
            with pytest.raises(RequestFailed, match="no tokens"):
                await collect(group, "bad", ())
            with pytest.raises(RequestFailed, match="from 0 to 999"):
                await group.infer("bad", "embed", [[1000]])
        async with running(tp=2, pp=2) as group:
            with pytest.raises(InputError, match=r"no tp2 x pp2; it has tp1 x pp1, tp1 x pp2, tp2 x pp1"):
                await group.load(chat())

    run(scenario())


def test_several_kinds_in_a_profile_need_the_kind_to_be_said():
    fast = StepCost(fixed=0.001)
    both = EmulatedModel(profile=Profile(shapes=(generating(COST, kind="cpu"), generating(fast, kind="v100"))))

    async def scenario(kind):
        launcher = EmulatedLauncher({"chat": both}, kind=kind)
        async with running(launcher=launcher) as group:
            await group.load(chat())
            return statistics.median(gaps(await collect(group, "r", wishes=params(20))))

    with pytest.raises(InputError, match="2 kinds of device"):
        run(scenario(None))
    assert run(scenario("v100")) < 0.004 < run(scenario("cpu"))


def test_a_model_file_stands_for_weights(tmp_path):
    write_json(tmp_path / "emulated.json", CHAT)
    assert read_emulated_model(tmp_path) == read_emulated_model(tmp_path / "emulated.json") == CHAT

    async def scenario():
        async with running(launcher=EmulatedLauncher()) as group:
            await group.load(ModelSpec(name="chat", path=str(tmp_path), kv_bytes=10_000))
            return await collect(group, "r")

    assert len(run(scenario())) == 8


def test_the_twin_of_a_real_model(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"vocab_size": 99, "max_position_embeddings": 256, "eos_token_id": [3, 4]}
    for name, kind, more in (
        ("llama", "LlamaForCausalLM", {}),
        ("bert", "BertForSequenceClassification", {"id2label": {"0": "a", "1": "b", "2": "c"}}),
    ):
        (tmp_path / name).mkdir()
        config = {"architectures": [kind], "model_type": name, "hidden_act": "gelu", **sizes, **more}
        write_json(tmp_path / name / "config.json", config)
    twin = emulate_directory(tmp_path / "bert", EMBED.profile)
    assert (twin.width, twin.vocabulary, twin.generates) == (3, 99, False)
    twin = emulate_directory(tmp_path / "llama", CHAT.profile)
    assert (twin.width, twin.max_positions, twin.eos_token_ids) == (0, 256, (3, 4))


def test_a_paced_emulated_group_takes_its_multiple_of_the_time():
    async def scenario():
        async with running(pace=3.0) as group:
            await group.load(chat())
            return statistics.median(gaps(await collect(group, "r")))

    assert abs(run(scenario()) - 3 * COST.seconds(0, 1, 0, 6)) < 0.010


@pytest.mark.parametrize("rank", [0, 3])
def test_a_killed_worker_ends_the_group_and_all_its_requests_at_once(rank):
    shapes = (generating(COST, COST, tp=2),)
    launcher_models = {"chat": EmulatedModel(profile=Profile(shapes=shapes))}

    async def scenario():
        devices = tuple(f"cpu:{core}" for core in range(4))
        spec = GroupSpec(name="g", devices=devices, tp=2, pp=2)
        group = await start_group(spec, EmulatedLauncher(launcher_models))
        await group.load(chat())
        load = [asyncio.create_task(collect(group, str(index), wishes=params(1000))) for index in range(8)]
        await asyncio.sleep(0.1)
        assert group.states["chat"].running > 0
        killed = time.monotonic()
        group.handles[rank].kill()
        failures = await asyncio.gather(*load, return_exceptions=True)
        assert time.monotonic() - killed < 0.5
        assert all(isinstance(failure, GroupLost) for failure in failures)
        with pytest.raises(GroupLost):
            await group.load(chat("x"))
        exits = [await asyncio.wait_for(handle.wait(), 1) for handle in group.handles]
        await group.stop()
        return [str(failure) for failure in failures], exits

    reasons, exits = run(scenario())
    assert exits[rank].signal == 9
    assert all(ended.code == 1 for index, ended in enumerate(exits) if index != rank)
    expected = "went away" if rank == 0 else "rank 3 is gone: SIGKILL"
    assert all(expected in reason for reason in reasons)


def test_no_signal_to_an_emulated_worker_reaches_a_process():
    async def scenario():
        async with running(tp=2) as group:
            for handle in group.handles:
                with pytest.raises(ProcessLookupError):
                    os.kill(handle.pid, 0)

    run(scenario())


def test_a_stopped_group_leaves_nothing_open():
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    async def scenario():
        launcher = EmulatedLauncher(MODELS)
        async with running(launcher=launcher) as group:
            await group.load(chat())
            await collect(group, "r")
        await asyncio.sleep(0.05)
        before = open_files()
        for _ in range(5):
            async with running(launcher=launcher):
                pass
        await asyncio.sleep(0.05)
        assert open_files() <= before

    run(scenario())


def test_two_hundred_groups_in_one_process():
    """Each makes five tokens of two requests at 200 ms a step; all are done in about the time of one."""
    slow = EmulatedModel(profile=Profile(shapes=(generating(StepCost(fixed=0.2)),)))

    async def scenario():
        launcher = EmulatedLauncher({"chat": slow})
        groups = [
            await start_group(GroupSpec(name=f"g{index}", devices=(f"cpu:{index}",), life_s=8.0), launcher)
            for index in range(200)
        ]
        await asyncio.gather(*(group.load(chat()) for group in groups))
        began = time.monotonic()
        answers = await asyncio.gather(
            *(collect(group, f"r{index}", wishes=params(5)) for group in groups for index in range(2))
        )
        seconds = time.monotonic() - began
        await asyncio.gather(*(group.stop() for group in groups))
        return answers, seconds, launcher.worst_lag_s

    answers, seconds, lag_s = run(scenario())
    assert all(len(one) == 5 for one in answers)
    # The second request of a group may just miss its first step, and each of the six may come late.
    assert 5 * 0.2 - 0.002 <= seconds < 6 * (0.2 + lag_s) + 0.5
    medians = [statistics.median(gaps(one)) for one in answers]
    assert abs(statistics.median(medians) - 0.2) < 0.01 + lag_s


def test_emulating_needs_no_torch():
    code = "import sys, serving.worker.emulated_launcher, serving.worker.group; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_steps_load_counts_prompts_and_decoding_sequences_apart():
    from serving.engine.scheduler import Chunk
    from serving.engine.sequence import Sequence

    def sequence(prompt, made):
        tokens = [1] * (prompt + made)
        stops = frozenset()
        return Sequence("r", 0, tokens, params(), 0, stops, 10, output_ids=[1] * made)

    chunks = [
        Chunk(sequence(10, 3), 12, 1, samples=True),
        Chunk(sequence(1, 0), 0, 1, samples=True),
        Chunk(sequence(40, 0), 16, 20, samples=False),
        Chunk(sequence(20, 5), 16, 9, samples=True),
    ]
    assert step_load(chunks) == (1 + 20 + 9, 1, 20 * 16 + 9 * 16, 12)
