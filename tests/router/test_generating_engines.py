"""What engines do to generating requests, on virtual time: lanes, slowness, deaths, plans, prefixes, sleep."""

import msgspec
import pytest

from placement.problem import Slo
from router import NotServed
from tests.placement.test_generation import EXPERTS
from tests.router.engine_scene import Scene, prefill_s
from tests.router.fakes import live, scene, tell


@scene
async def test_requests_are_handed_to_idle_engines_first():
    s = Scene(groups=3)
    for n in range(3):
        s.submit(str(n), tokens=300)
    fates = await s.end()
    assert [len(one.took) for one in s.groups] == [1, 1, 1]
    assert [first for _, first, _ in fates.values()] == [pytest.approx(prefill_s(300))] * 3


@scene
async def test_a_lane_is_handed_no_more_than_it_can_prefill_soon():
    """What is not handed over can still go elsewhere, and can be cancelled at no cost."""
    s = Scene(slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(20):
        s.submit(str(n), tokens=400)
    assert s.router.running == 2
    assert s.router.waiting == 18
    assert {reason for reason, _, _ in (await s.end()).values()} == {"served"}


@scene
async def test_late_first_tokens_make_admission_careful_and_timely_ones_bold_again():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.2), pace=1.5)
    stretch = s.router._hall.pool.mirror.world.learned.stretch
    for n in range(400):
        await s.at(n * 0.045)
        s.submit(str(n), tokens=500, output=2)
    await s.end()
    careful = float(stretch[0])
    assert careful > 1.2
    s.groups[0].pace = 0.5
    for n in range(400, 1200):
        await s.at(s.loop.time() + 0.02)
        s.submit(str(n), tokens=500, output=2)
    await s.end()
    assert float(stretch[0]) < careful


@scene
async def test_slow_engines_are_learned_from_those_who_come_alone():
    s = Scene(slo=Slo(ttft=0.1, tpot=0.1), pace=2.0)
    for n in range(40):
        await s.at(n * 1.0)
        s.submit(str(n), tokens=100, output=3)
    await s.end()
    assert 1.9 < s.router.factors()["g0", "chat"] < 2.2
    error = s.submit("long", tokens=700, output=3)
    assert "too slow of late" in str(error)
    assert error.retry_after_s > 0
    s.groups[0].pace = 1.0
    for n in range(40, 140):
        await s.at(n * 1.0)
        s.submit(str(n), tokens=100, output=3)
    assert 0.98 < s.router.factors()["g0", "chat"] < 1.05
    s.submit("long again", tokens=700, output=3)
    assert (await s.end())["long again"][0] == "served"


@scene
async def test_engines_that_are_slow_touch_no_more_experts():
    s = Scene(slo=Slo(ttft=0.3, tpot=0.2), pace=2.0, cost=EXPERTS)
    for n in range(40):
        await s.at(n * 1.0)
        s.submit(str(n), tokens=100, output=3)
    await s.end()
    factor = s.router.factors()["g0", "chat"]
    assert 1.9 < factor < 2.2
    reckoned = s.router._hall.pool.mirror.world.engines.cost[0, 0]
    assert reckoned.tolist() == pytest.approx(msgspec.structs.astuple(EXPERTS.times(factor)))


@scene
async def test_what_keeps_all_out_is_doubted():
    """Refusing everybody teaches nothing, so a group that was slow is tried again after a while."""
    s = Scene(slo=Slo(ttft=0.1, tpot=0.1), pace=2.0)
    for n in range(200):
        if n == 40:
            s.groups[0].pace = 1.0
        await s.at(n * 1.0)
        s.submit(str(n), tokens=700, output=3)
    await s.end()
    assert s.reasons(*map(str, range(40))).count("served") < 8
    assert s.reasons(*map(str, range(100, 200))) == ["served"] * 100


@scene
async def test_a_death_before_the_first_token_is_retried_once_elsewhere():
    s = Scene(groups=2)
    s.submit("a", tokens=500)
    await s.at(0.01)
    victim = next(one for one in s.groups if one.open)
    victim.die()
    fates = await s.end()
    assert fates["a"][0] == "served"
    assert fates["a"][1] == pytest.approx(0.01 + prefill_s(500))
    assert s.counts.retried == 1
    assert s.router.ready_groups("chat") == [one.name for one in s.groups if one is not victim]


@scene
async def test_a_second_death_and_one_after_the_first_token_are_failures():
    s = Scene(groups=3, slo=Slo(ttft=5.0, tpot=1.0))
    s.submit("twice", tokens=500)
    for when in (0.01, 0.02):
        await s.at(when)
        next(one for one in s.groups if one.open).die()
    s.submit("begun", tokens=10, output=100)
    await s.at(0.2)
    assert s.groups[2].took == ["begun"]
    s.groups[2].die()
    fates = await s.end()
    assert fates["twice"][0] == fates["begun"][0] == "failed"
    assert fates["begun"][1] is not None
    assert s.submit("late").reason == "no-replica"


@scene
async def test_those_who_wait_for_a_dead_group_go_elsewhere():
    s = Scene(groups=2, slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(12):
        s.submit(str(n), tokens=500)
    waiting = s.router.waiting
    assert waiting >= 8
    s.groups[0].die()
    tell(s.router, "g0", gone=True)
    fates = await s.end()
    assert {reason for reason, _, _ in fates.values()} == {"served"}
    assert not set(s.groups[0].took[2:])
    assert len(s.groups[1].took) == 12


@scene
async def test_without_any_engine_those_who_wait_are_told_when_it_is_too_late():
    s = Scene(slo=Slo(ttft=0.5, tpot=0.1))
    for n in range(4):
        s.submit(str(n), tokens=512, output=2)
    await s.at(0.01)
    s.router.apply([])
    assert s.router.waiting == 3
    error = s.submit("new")
    assert error.reason == "no-replica"
    assert error.retry_after_s > 0
    fates = await s.end()
    assert fates["0"][0] == "served"
    assert s.reasons("1", "2", "3") == ["no-replica"] * 3
    assert fates["1"][2] <= 0.5


@scene
async def test_a_new_plan_moves_those_who_wait_and_lets_those_who_run_end_where_they_are():
    s = Scene(groups=3, use=1, slo=Slo(ttft=5.0, tpot=1.0))
    for n in range(10):
        s.submit(str(n), tokens=500, output=40)
    await s.at(0.06)
    begun = list(s.groups[0].took)
    s.router.apply([live(s.groups[1]), live(s.groups[2])])
    assert s.router.waiting + s.router.running == 10
    fates = await s.end()
    assert {reason for reason, _, _ in fates.values()} == {"served"}
    assert s.groups[0].took == begun
    assert len(begun) < 10


@scene
async def test_a_kept_group_keeps_the_count_of_what_runs_there():
    s = Scene(groups=2, capacity=1000, use=1, slo=Slo(ttft=5.0, tpot=1.0))
    s.submit("a", tokens=600, output=100)
    await s.at(0.3)
    world = s.router._hall.pool.mirror.world
    used, decoding = world.used.tolist(), world.lanes.decoding.tolist()
    made = s.groups[0].decoding[0].made
    assert used == [600 + made - 1]
    s.router.apply([live(s.groups[0]), live(s.groups[1])])
    world = s.router._hall.pool.mirror.world
    assert world.used.tolist() == [*used, 0]
    assert world.lanes.decoding.tolist() == [*decoding, 0]
    tell(s.router, "g0", draining=True)
    s.submit("b", tokens=600)
    await s.at(0.35)
    assert s.groups[1].took == ["b"]
    tell(s.router, "g0", draining=False)
    made = s.groups[0].decoding[0].made
    assert s.router._hall.pool.mirror.world.used.tolist()[0] == 600 + made - 1
    await s.end()
    assert s.reasons("a", "b") == ["served", "served"]


@scene
async def test_the_replica_that_has_the_prefix_is_preferred_while_that_is_sooner():
    s = Scene(groups=3, slo=Slo(ttft=5.0, tpot=1.0))
    talk = list(range(480))
    s.submit("filler", tokens=10, output=2)
    s.submit("turn 1", tokens=480, output=2, prompt=talk)
    await s.at(1.0)
    [home] = [one for one in s.groups if "turn 1" in one.took]
    assert home is not s.groups[0]
    for turn in (2, 3):
        s.submit(f"turn {turn}", tokens=490, output=2, prompt=talk + [turn] * 10)
        await s.at(float(turn))
    assert home.took == ["turn 1", "turn 2", "turn 3"]
    for n in range(3):  # home has much to do: another engine is sooner, prefix or not
        s.submit(f"busy {n}", tokens=500, output=2, prompt=talk + [9 + n] * 20)
    assert len(home.took) < 6
    await s.end()
    assert len(home.took) < 6


@scene
async def test_who_cannot_be_in_time_once_the_model_is_awake_is_refused_at_once():
    asleep = Scene(slo=Slo(ttft=1.0, tpot=0.1))
    asleep.router.reckon_with(lambda model: 0.8)
    asleep.submit("patient")
    refused = asleep.submit("pressed", slo_s=0.7)
    assert isinstance(refused, NotServed)
    assert refused.reason == "refused"
    asleep.router.reckon_with(lambda model: 0.0)
    asleep.submit("awake", slo_s=0.7)
    fates = await asleep.end()
    assert {name: fate[0] for name, fate in fates.items()} == {
        "patient": "served",
        "pressed": "refused",
        "awake": "served",
    }
