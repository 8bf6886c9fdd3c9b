"""Stages that never take quite what was profiled: devices must not stand idle for the sake of the slowest batch."""

import asyncio
from random import Random

import pytest

from placement.tables import Catalogue
from router import NotServed, Request, Router
from router.virtual_time import run_virtually
from tests.placement.worlds import World, group, node, shape
from tests.router.fakes import Lost, ObedientGroup, collect, live

STAGE_S, REQUESTS, TRAVEL_S = 0.02, 400, 0.004


class NoisyGroup(ObedientGroup):
    """Each stage takes up to a share more or less than profiled; answers travel."""

    def __init__(self, *args, noise):
        self._random, self._noise = Random(1), noise
        super().__init__(*args)

    @property
    def pace(self):
        return self._random.uniform(1 - self._noise, 1 + self._noise)

    @pace.setter
    def pace(self, _):
        pass

    def _answer(self, done, request):
        delay_s = self._random.expovariate(1 / TRAVEL_S)
        asyncio.get_running_loop().call_later(delay_s, super()._answer, done, request)


def a_pipeline(slo):
    return World(
        nodes=[node(2)],
        profiles={"p": {"shapes": [shape({1: [STAGE_S, STAGE_S]}, pp=2)]}},
        models=[{"name": "a", "profile": "p", "slo": slo}],
        groups=[group(["n/0", "n/1"], ["a"], pp=2)],
        arrivals=[(0.0, 0)],
        overhead=TRAVEL_S,
    )


async def serve(slo, noise, gap_s):
    loop = asyncio.get_running_loop()
    world = a_pipeline(slo)
    catalogue = Catalogue(world.problem)
    noisy = NoisyGroup("g0", world.plan.groups[0], catalogue, catalogue.tables(world.plan), noise=noise)
    router = Router(world.problem, (Lost,), now=loop.time)
    router.apply([live(noisy)])
    tasks = []
    for number in range(REQUESTS):
        try:
            ticket = router.submit(
                Request(id=str(number), model="a", tokens=1), lambda one, n=number: one.infer(n, "a")
            )
        except NotServed:
            pass
        else:
            tasks.append(asyncio.create_task(collect(ticket)))
        await asyncio.sleep(gap_s)
    await asyncio.gather(*tasks, return_exceptions=True)
    return loop.time(), router.statistics.classes["a", "standard"]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_full_pipeline_stays_busy(noise):
    taken_s, counts = run_virtually(serve(slo=1000.0, noise=noise, gap_s=0.0))
    assert counts.met == REQUESTS
    assert taken_s < REQUESTS * STAGE_S * (1.03 + noise / 4)


def test_what_is_admitted_is_in_time_all_the_same():
    _, counts = run_virtually(serve(slo=0.3, noise=0.05, gap_s=STAGE_S / 2))
    assert counts.served > REQUESTS / 2
    assert counts.met > 0.95 * counts.served
    assert counts.not_served.get("expired", 0) < 0.025 * REQUESTS
