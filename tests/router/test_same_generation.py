"""The live router against the simulator on generating models: the same engines, stepped by the simulator and seen only
from outside by the router. Who is admitted alone is the same; under load it is as good."""

import asyncio
from random import Random

import numpy as np
import pytest

from placement.dispatch import REASONS
from placement.generation.serve import simulate_generation
from placement.problem import Slo
from placement.tables import Catalogue
from router import NotServed, Request, Router
from router.virtual_time import run_virtually
from tests.placement.test_generation import COST, EXPERTS, chat, requests
from tests.router.fakes import EngineGroup, Lost, assert_empty, collect, live


async def route(problem, plan):
    """Reason and time of the first token of each request, and whether its goals were met."""
    loop = asyncio.get_running_loop()
    catalogue = Catalogue(problem)
    groups = [EngineGroup(f"g{index}", spec, catalogue) for index, spec in enumerate(plan.groups)]
    router = Router(problem, (Lost,), now=loop.time)
    router.apply([live(group) for group in groups])
    workload = problem.workload
    reasons, first = {}, np.full(len(workload), np.nan)

    async def consume(number, ticket):
        try:
            await ticket.__anext__()
            first[number] = loop.time() + problem.overhead
            await collect(ticket)
            reasons[number] = "served"
        except NotServed as error:
            reasons[number] = error.reason
        except StopAsyncIteration:
            reasons[number] = "served"

    tasks = []
    rows = zip(workload.arrival.tolist(), workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for number, (arrival, prompt, output) in enumerate(rows):
        await loop.sleep_until(arrival)
        request = Request(id=str(number), model="chat", tokens=prompt, max_tokens=output)
        try:
            ticket = router.submit(request, lambda group, n=number, p=prompt, o=output: group.generate(n, p, o))
            tasks.append(asyncio.create_task(consume(number, ticket)))
        except NotServed as error:
            reasons[number] = error.reason
    await asyncio.gather(*tasks)
    assert_empty(router)
    met = sum(counts.met for counts in router.statistics.classes.values())
    return [reasons[number] for number in range(len(workload))], first, met / len(workload)


def both(rows, *costs, **world):
    problem, plan = chat(requests(*rows), *costs, **world)
    outcome = simulate_generation(problem, plan, problem.workload, "deadline", 1, Catalogue(problem))
    return run_virtually(route(problem, plan)), outcome


@pytest.mark.parametrize("cost", [COST, EXPERTS])
def test_one_at_a_time_every_decision_is_the_same(cost):
    random = Random(5)
    rows, now = [], 0.0
    for _ in range(300):
        prompt, output = random.choice((1, 100, 512, 700, 1500, 4000, 9000)), random.randint(1, 20)
        rows.append((now, prompt, output))
        now += 5.0
    (reasons, first, _), outcome = both(rows, cost, slo=Slo(ttft=0.3, tpot=0.1), capacity=8000, groups=2)
    assert reasons == [REASONS[status] for status in outcome.status]
    assert set(reasons) == {"served", "refused"}
    np.testing.assert_allclose(first, outcome.first, atol=1e-9)


def traffic(load, seconds):
    """Poisson; from a load of 1 on, it is more than two groups can do within the goals."""
    random = Random(7)
    rows, now = [], 0.0
    while now < seconds:
        prompt, output = (min(int(random.expovariate(1 / mean)) + 1, 10 * mean) for mean in (300, 40))
        rows.append((now, prompt, output))
        now += random.expovariate(65 * load)
    return rows


@pytest.mark.parametrize("load", [0.4, 0.9, 1.3, 3.0])
def test_under_load_as_many_are_in_time(load):
    (reasons, _, attainment), outcome = both(traffic(load, 20.0), slo=Slo(ttft=0.5, tpot=0.05), groups=2)
    assert attainment == pytest.approx(outcome.attainment, abs=0.03)
    assert reasons.count("expired") < 0.01 * len(reasons)
    assert set(reasons) <= {"served", "refused", "expired"}
    if load < 0.5:
        assert set(reasons) == {"served"}
