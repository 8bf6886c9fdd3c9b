"""Experts of a larger model change places on a real group while it talks: no token waits for it."""

import asyncio
import itertools
import statistics
import time

from serving.sampling import SamplingParams
from serving.small_models.random import make_random
from serving.worker.event_loop import run
from serving.worker.group import GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

LAYERS, EXPERTS = 4, 16
LOWER, UPPER = list(range(EXPERTS // 2)), list(range(EXPERTS // 2, EXPERTS))
ONE_WAY, THE_OTHER = [[LOWER, UPPER]] * LAYERS, [[[*UPPER, 0], [*LOWER, EXPERTS - 1]]] * LAYERS
SHORT_S = 0.01
"""Nobody reads a pause so short, whatever a step takes on a fast machine."""
ENDLESS = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)


def test_no_token_waits_for_experts_that_move(tmp_path):
    """100 MB of experts are read each time, nearly all of them; gaps between tokens stay far below that."""
    make_random(tmp_path, hidden=256, heads=32, ffn=512, layers=LAYERS, vocabulary=512, experts=EXPERTS)
    times, texts, moves = [], [], []

    async def talk(group):
        for number in itertools.count():
            text = []
            async for produced in group.generate(f"r{number}", "moe", [1, 2, 3], ENDLESS):
                times.append(time.perf_counter())
                text.append(produced.token)
            texts.append(text)

    async def scenario():
        group = await start_group(GroupSpec(name="g", devices=("cpu:0", "cpu:1"), tp=2), LocalLauncher())
        try:
            await group.load(ModelSpec(name="moe", path=str(tmp_path), kv_bytes=8_000_000, experts=ONE_WAY))
            talking = asyncio.create_task(talk(group))
            while len(times) < 200:
                await asyncio.sleep(0.05)
            for places, missing in ((THE_OTHER, EXPERTS), (ONE_WAY, EXPERTS - 2)):
                began = time.perf_counter()
                facts = await group.place_experts("moe", places)
                moves.append((began, time.perf_counter()))
                assert facts == {"read": LAYERS * missing}
            while len(texts) < 2:
                await asyncio.sleep(0.05)
            talking.cancel()
        finally:
            await group.stop()

    run(asyncio.wait_for(scenario(), 120))
    assert all(text == texts[0] for text in texts), "what is said does not depend on where experts are"
    gaps = [(later - sooner, later) for sooner, later in itertools.pairwise(times)]
    calm = statistics.median(gap for gap, at in gaps if at < moves[0][0])
    for began, ended in moves:
        # And a few steps further: the first with the new places must not wait for anything either.
        during = sorted(gap for gap, at in gaps if began < at and at - gap < ended + 5 * calm)
        assert during[-1] < max((ended - began) / 4, 10 * calm)
        assert during[int(0.95 * len(during))] < max(5 * calm, SHORT_S)
