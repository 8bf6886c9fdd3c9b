"""What may happen to a generating request, on virtual time: admission, cancelling, order, classes, pace, bounds."""

import asyncio

import pytest

from placement.problem import Slo
from router import NotServed, Request
from tests.placement.test_generation import COST
from tests.router.engine_scene import Scene, prefill_s
from tests.router.fakes import scene

OVERHEAD_S = 0.01


@scene
async def test_a_lone_request_has_its_tokens_when_the_engine_makes_them():
    s = Scene()
    s.submit("a", tokens=400, output=5)
    assert s.router.running == 1
    fates = await s.end()
    reason, first, last = fates["a"]
    assert reason == "served"
    assert first == pytest.approx(prefill_s(400))
    assert last == pytest.approx(first + sum(COST.seconds(0, 1, 0, 400 + n) for n in range(4)))
    assert (s.counts.served, s.counts.met) == (1, 1)


@scene
async def test_one_that_could_never_be_in_time_is_refused_for_ever():
    s = Scene(slo=Slo(ttft=0.05, tpot=0.1))
    error = s.submit("long", tokens=2000)
    assert (error.reason, error.retry_after_s) == ("refused", None)
    assert "even with nothing else to do" in str(error)
    s.submit("short", tokens=200)
    error = s.submit("hasty", tokens=200, slo_s=0.02)
    assert (error.reason, error.retry_after_s) == ("refused", None)
    s.submit("patient", tokens=2000, slo_s=5.0)
    error = s.submit("swift", tokens=10, tpot_s=0.005)
    assert (error.reason, error.retry_after_s) == ("refused", None)
    assert "and 5 ms for each further token: no group could, even with nothing else to do" in str(error)
    assert s.router._hall.pool.mirror.world.engines.tpot[0] == 0.1, "others need not keep that pace"
    s.submit("one token", tokens=10, output=1, slo_s=5.0, tpot_s=0.005)
    await s.end()
    assert s.reasons("short", "patient", "one token") == ["served"] * 3


@scene
async def test_one_that_fits_no_cache_is_refused():
    s = Scene(capacity=1000, slo=Slo(ttft=100.0, tpot=1.0))
    error = s.submit("large", tokens=1001)
    assert (error.reason, error.retry_after_s) == ("refused", None)
    s.submit("fits", tokens=1000)
    assert s.reasons("large") == ["refused"]
    await s.end()


@scene
async def test_a_burst_is_admitted_as_far_as_it_can_be_in_time_and_told_when_to_come_back():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.1))
    errors = [one for n in range(40) if isinstance(one := s.submit(str(n), tokens=500, output=3), NotServed)]
    assert 20 < len(errors) < 35
    assert all(error.reason == "refused" for error in errors)
    assert all(0 < error.retry_after_s < 0.5 for error in errors)
    assert s.router.waiting > 0
    await s.at(errors[0].retry_after_s + 0.001)
    s.submit("again", tokens=500, output=3)
    fates = await s.end()
    assert fates["again"][0] == "served"
    served = [fate for fate in fates.values() if fate[0] == "served"]
    assert len(served) == 41 - len(errors)
    assert s.counts.met == len(served)
    assert max(first for _, first, _ in (fates[str(n)] for n in range(40)) if first) <= 0.5 - OVERHEAD_S


@scene
async def test_cancelled_while_it_waits():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(4):
        s.submit(str(n), tokens=512)
    assert s.router.waiting == 3
    await s.at(0.01)
    s.tasks["2"].cancel()
    await s.at(0.02)
    assert s.router.waiting == 2
    await s.end()
    assert s.groups[0].took == ["0", "1", "3"]
    assert s.counts.not_served == {"cancelled": 1}


@scene
async def test_cancelled_while_it_runs_frees_its_cache():
    s = Scene(capacity=1000, slo=Slo(ttft=50.0, tpot=1.0))
    s.submit("a", tokens=600, output=300)
    s.submit("b", tokens=600, output=3)
    await s.at(0.5)
    assert (s.router.running, s.router.waiting, s.groups[0].open) == (1, 1, 1)
    s.tasks["a"].cancel()
    await s.at(0.501)
    assert (s.router.running, s.router.waiting) == (1, 0)
    await s.end()
    assert s.reasons("b") == ["served"]
    assert s.groups[0].took == ["a", "b"]


@scene
async def test_closing_counts_as_cancelled_and_finishing_as_served():
    s = Scene()
    for name in ("closed", "finished"):
        wanted = Request(id=name, model="chat", tokens=10, max_tokens=50)
        ticket = s.router.submit(wanted, lambda group, name=name: group.generate(name, 10, 50))
        for _ in range(3):
            await ticket.__anext__()
        await (ticket.aclose() if name == "closed" else ticket.finish())
        with pytest.raises(StopAsyncIteration):
            await ticket.__anext__()
    await s.end()
    assert (s.counts.served, s.counts.met, s.counts.not_served) == (1, 1, {"cancelled": 1})


@scene
async def test_who_can_no_longer_be_in_time_expires():
    s = Scene(slo=Slo(ttft=0.3, tpot=0.1), pace=20.0)  # twenty times as slow as profiled
    for n in range(5):
        s.submit(str(n), tokens=512, output=2)
    fates = await s.end()
    expired = [name for name, fate in fates.items() if fate[0] == "expired"]
    assert expired
    assert all(fates[name][2] <= 0.3 for name in expired)
    assert not set(expired) & set(s.groups[0].took)
    assert all(one.retry_after_s > 0 for one in s.router.statistics.refusals if one.reason == "expired")


@scene
async def test_fair_share_of_tenants_under_pressure():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.1))
    refused = 0
    while not refused:
        refused = isinstance(s.submit(f"greedy {len(s.tasks)}", tokens=500, output=3, tenant="greedy"), NotServed)
    greedy = s.router.waiting
    assert greedy > 4  # alone, it may have everything
    for number in range(3):
        assert not isinstance(s.submit(f"modest {number}", tokens=500, output=3, tenant="modest"), NotServed)
    error = s.submit("greedy again", tokens=500, output=3, tenant="greedy")
    assert error.reason == "refused"
    assert "more than its share" in str(error)
    fates = await s.end()
    assert [fates[f"modest {number}"][0] for number in range(3)] == ["served"] * 3


@scene
async def test_a_higher_class_takes_the_place_of_a_lower_one_where_there_is_not_room_for_both():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.1))
    for n in range(20):
        s.submit(f"batch {n}", tokens=500, output=2, priority="batch")
    refused = [name for name, fate in s.fates.items() if fate[0] == "refused"]
    assert refused
    s.submit("standard", tokens=500, output=2)
    s.submit("interactive", tokens=500, output=2, priority="interactive")
    assert s.submit("batch again", tokens=500, priority="batch").reason == "refused"
    fates = await s.end()
    assert fates["standard"][0] == fates["interactive"][0] == "served"
    expired = sorted(name for name, fate in fates.items() if fate[0] == "expired")
    assert expired == [f"batch {20 - len(refused) - n}" for n in (2, 1)]
    assert {fate[0] for name, fate in fates.items() if name not in [*refused, *expired, "batch again"]} == {"served"}


@scene
async def test_with_room_for_all_classes_change_nothing():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    names = [f"{priority} {n}" for n in range(4) for priority in ("batch", "standard", "interactive")]
    for name in names:
        s.submit(name, tokens=512, output=2, priority=name.split()[0])
    await s.end()
    assert s.groups[0].took == names


@scene
async def test_those_who_are_due_later_do_not_count_against_a_deadline():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(20):
        s.submit(f"patient {n}", tokens=512, output=2)
    s.submit("hasty", tokens=512, output=2, slo_s=0.2)
    fates = await s.end()
    assert {fate[0] for fate in fates.values()} == {"served"}
    assert fates["hasty"][1] <= 0.2


@scene
async def test_the_line_is_ordered_by_deadline_within_a_class():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    s.submit("running", tokens=512, output=2)
    s.submit("usual", tokens=512, output=2)
    s.submit("patient", tokens=512, output=2, slo_s=9.0)
    s.submit("hasty", tokens=512, output=2, slo_s=2.0)
    await s.end()
    assert s.groups[0].took == ["running", "hasty", "usual", "patient"]


@scene
async def test_a_tight_pace_of_ones_own_holds_while_it_runs():
    s = Scene(slo=Slo(ttft=50.0, tpot=1.0))
    s.submit("swift", tokens=10, output=200, tpot_s=0.0091)
    tpot = s.router._hall.pool.mirror.world.engines.tpot
    assert tpot[0] == 0.0091
    for n in range(40):
        s.submit(f"slow {n}", tokens=10, output=200)
    assert 5 < s.router.running < 30  # more would make steps too slow for it
    await s.tasks["swift"]
    assert tpot[0] == 1.0
    await s.at(s.loop.time() + 0.05)
    assert s.router.waiting == 0
    fates = await s.end()
    assert {reason for reason, _, _ in fates.values()} == {"served", "refused"}
    assert all(one.retry_after_s > 0 for one in s.router.statistics.refusals)


@scene
async def test_several_answers_count_as_sequences():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))

    async def run(group):
        for token in range(12):
            await asyncio.sleep(0.01)
            yield token

    ticket = s.router.submit(Request(id="n", model="chat", tokens=10, max_tokens=4, answers=3), run)
    await ticket.__anext__()
    world = s.router._hall.pool.mirror.world
    assert world.lanes.decoding.tolist() == [3]
    assert len([token async for token in ticket]) == 11
    assert world.learned.ended_tokens[0] == 4
    await s.end()


@scene
async def test_bounds():
    s = Scene(slo=Slo(ttft=50.0, tpot=1.0), queue_requests=5, running_requests=8)
    for n in range(30):
        s.submit(str(n), tokens=512)
    assert s.router.waiting == 5
    assert s.router.running + s.router.waiting <= 8
    full = [one for one in s.router.statistics.refusals if one.reason == "queue-full"]
    assert len(full) == 30 - s.router.running - 5
    assert all(one.retry_after_s > 0 for one in full)
    await s.end()


@scene
async def test_nothing_is_kept_of_those_who_are_gone():
    s = Scene(slo=Slo(ttft=1000.0, tpot=10.0))
    for n in range(2000):
        s.submit(str(n), tokens=512, output=1)
        if n % 10 == 9:
            await asyncio.gather(*s.tasks.values())
            s.tasks.clear()
    assert len(s.router._hall._too_late) < 1100
    await s.end()


@scene
async def test_closing_the_router_tells_all_who_wait():
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(4):
        s.submit(str(n), tokens=512, output=2)
    s.router.close()
    fates = await s.end()
    assert fates["0"][0] == "served"
    assert s.reasons("1", "2", "3") == ["failed"] * 3


@scene
async def test_when_to_come_back_can_be_asked():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.1))
    assert s.router.retry_after_s("chat") == pytest.approx(0, abs=1e-3)
    assert s.router.retry_after_s("chat", slo_s=0.02, tokens=512) is None
    arrived = s.router._hall.pool.mirror.world.learned.arrived.copy()
    for n in range(40):
        s.submit(str(n), tokens=500, output=3)
    assert 0 < s.router.retry_after_s("chat", tokens=500) < 1
    assert s.router._hall.pool.mirror.world.learned.arrived[0] == arrived[0] + 40
    s.router.apply([])
    assert s.router.retry_after_s("chat") > 0
    await s.end()
