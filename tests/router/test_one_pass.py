"""What may happen to a one-pass request, on virtual time: deadlines, cancelling, deaths, drains, bounds, classes."""

import asyncio

import pytest

from placement.tables import Catalogue
from router import LiveGroup, NotServed, Request, Router, RouterSettings
from router.hall import RELOAD_S
from router.virtual_time import run_virtually
from tests.placement.worlds import World, group, node, one_model_world, shape
from tests.router.fakes import Lost, ObedientGroup, assert_empty, collect, live, scene, tell


class Scene:
    """A router over obedient groups, and the fates of the requests submitted to it."""

    def __init__(self, world, groups=None, pace=1.0, **settings):
        self.loop = asyncio.get_running_loop()
        self.world = world
        catalogue = Catalogue(world.problem)
        tables = catalogue.tables(world.plan)
        self.groups = [
            ObedientGroup(f"g{index}", spec, catalogue, tables, pace) for index, spec in enumerate(world.plan.groups)
        ]
        self.router = Router(world.problem, (Lost,), RouterSettings(**settings), now=self.loop.time)
        self.router.apply([live(one) for one in (self.groups if groups is None else self.groups[:groups])])
        self.fates = {}
        self.tasks = {}

    def submit(self, name, model="a", **request):
        """Refused: its fate is known at once. Else a task of its own waits for the answer."""
        wanted = Request(id=name, model=model, **({"tokens": 1} | request))
        try:
            ticket = self.router.submit(wanted, lambda one: one.infer(name, model))
        except NotServed as error:
            self.fates[name] = (error.reason, self.loop.time())
            return error
        self.tasks[name] = asyncio.create_task(self._consume(name, ticket))
        return ticket

    async def _consume(self, name, ticket):
        try:
            items = await collect(ticket)
            assert items == [name]
            self.fates[name] = ("served", self.loop.time())
        except NotServed as error:
            self.fates[name] = (error.reason, self.loop.time())

    async def at(self, when):
        await self.loop.sleep_until(when)

    async def end(self):
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert all(one.open == 0 for one in self.groups)
        assert_empty(self.router)
        return self.fates


def one_second(groups=1, slo=2.5, **extra):
    return one_model_world({1: [1.0]}, slo, [0.0], groups, **extra)


@scene
async def test_a_request_may_have_a_deadline_of_its_own():
    s = Scene(one_second())
    s.submit("first")
    error = s.submit("hasty", slo_s=1.5)
    assert error.reason == "refused"
    assert "0.500 s late" in str(error)
    s.submit("patient", slo_s=4.0)
    s.submit("usual")  # goes before the patient one, whose deadline is later
    assert s.submit("too many").reason == "refused"
    fates = await s.end()
    assert fates["first"] == ("served", 1.0)
    assert fates["usual"] == ("served", 2.0)
    assert fates["patient"] == ("served", 3.0)


@scene
async def test_refusal_is_at_once_and_says_when_to_come_back():
    s = Scene(one_second())
    for name in "ab":
        s.submit(name)
    error = s.submit("c")
    assert error.reason == "refused"
    assert error.retry_after_s == pytest.approx(0.5, abs=1e-3)
    early = s.router.retry_after_s("a")
    assert early == error.retry_after_s
    await s.at(error.retry_after_s - 0.01)
    assert s.submit("too early").reason == "refused"
    await s.at(error.retry_after_s)
    s.submit("again")
    assert (await s.end())["again"] == ("served", 3.0)
    [first, *_] = s.router.statistics.refusals
    assert first.request == "c"
    assert first.predicted == 3.0
    assert first.deadline == 2.5
    assert first.replicas == (("g0", 2.0),)


@scene
async def test_what_never_fits_has_no_time_to_come_back():
    s = Scene(one_second())
    assert s.submit("impossible", slo_s=0.5).retry_after_s is None
    await s.end()


@scene
async def test_cancelled_while_it_waits():
    s = Scene(one_second())
    for name in "ab":
        s.submit(name)
    await s.at(0.5)
    s.tasks["b"].cancel()
    await s.at(0.6)
    assert s.router.waiting == 0
    s.submit("c")
    fates = await s.end()
    assert fates["c"] == ("served", 2.0)
    assert [request for _, members in s.groups[0].batches for request in members] == ["a", "c"]
    assert s.router.statistics.of("a", "standard").not_served == {"cancelled": 1}


@scene
async def test_cancelled_while_it_runs():
    s = Scene(one_second())
    ticket = s.submit("a")
    await s.at(0.5)
    assert s.groups[0].open == 1
    s.tasks["a"].cancel()
    await s.at(0.6)
    assert s.groups[0].open == 0
    assert s.router.running == 0
    with pytest.raises(StopAsyncIteration):
        await ticket.__anext__()
    await s.end()


@scene
async def test_closing_without_iterating_gives_up_the_place():
    s = Scene(one_second())
    s.submit("a")
    ticket = s.router.submit(Request(id="x", model="a", tokens=5), lambda one: one.infer("x", "a"))
    assert s.router.waiting == 1
    await ticket.aclose()
    await ticket.aclose()
    await s.end()


@scene
async def test_a_death_before_the_answer_is_retried_once_elsewhere():
    s = Scene(one_second(groups=2, slo=5.0))
    s.submit("a")
    await s.at(0.25)
    victim = next(one for one in s.groups if one.open)
    victim.die()
    fates = await s.end()
    assert fates["a"] == ("served", 1.25)
    assert s.router.ready_groups("a") == [one.name for one in s.groups if one is not victim]
    assert s.router.statistics.of("a", "standard").retried == 1


@scene
async def test_a_second_death_is_a_failure():
    s = Scene(one_second(groups=3, slo=9.0))
    s.submit("a")
    for when in (0.25, 0.5):
        await s.at(when)
        next(one for one in s.groups if one.open).die()
    fates = await s.end()
    assert fates["a"] == ("failed", 0.5)


@scene
async def test_no_retry_that_would_be_late():
    s = Scene(one_second(groups=2, slo=1.5))
    s.submit("a")
    await s.at(0.75)
    next(one for one in s.groups if one.open).die()
    assert (await s.end())["a"] == ("failed", 0.75)


@scene
async def test_no_retry_after_the_first_item():
    s = Scene(one_second(groups=2, slo=9.0))
    calls = []

    async def run(one):
        calls.append(one.name)
        yield "begun"
        raise Lost("gone")

    ticket = s.router.submit(Request(id="x", model="a", tokens=1), run)
    assert await ticket.__anext__() == "begun"
    with pytest.raises((Lost, NotServed)):
        await ticket.__anext__()
    assert len(calls) == 1
    await s.end()


@scene
async def test_waiting_requests_of_a_dead_group_go_to_others():
    s = Scene(one_second(groups=2, slo=4.0))
    for name in "abcd":
        s.submit(name)
    await s.at(0.25)
    s.groups[0].die()
    tell(s.router, "g0", gone=True)
    fates = await s.end()
    assert [fates[name][0] for name in "abcd"].count("served") >= 3
    assert all(reason in ("served", "failed", "expired") for reason, _ in fates.values())
    assert max(when for reason, when in fates.values() if reason == "served") <= 4.0


@scene
async def test_an_error_of_the_request_is_passed_on():
    s = Scene(one_second())

    async def run(one):
        raise ValueError("bad input")
        yield

    ticket = s.router.submit(Request(id="x", model="a", tokens=1), run)
    with pytest.raises(ValueError, match="bad input"):
        await ticket.__anext__()
    assert s.router.statistics.of("a", "standard").not_served == {"failed": 1}
    await s.end()


@scene
async def test_a_draining_group_takes_no_new_ones_and_ends_its_own():
    s = Scene(one_second(groups=2, slo=5.0))
    for name in "ab":
        s.submit(name)
    await s.at(0.5)
    tell(s.router, "g0", draining=True)
    for name in "cd":
        s.submit(name)
    fates = await s.end()
    assert {reason for reason, _ in fates.values()} == {"served"}
    assert len(s.groups[0].batches) == 1
    assert len(s.groups[1].batches) == 3
    tell(s.router, "g0", draining=False)
    s.submit("e")
    s.submit("f")
    assert {reason for reason, _ in (await s.end()).values()} == {"served"}
    assert len(s.groups[0].batches) == 2


@scene
async def test_without_a_replica_and_when_one_appears():
    s = Scene(one_second(), groups=0)
    error = s.submit("early")
    assert error.reason == "no-replica"
    assert s.router.ready_groups("a") == []
    assert error.retry_after_s == pytest.approx(RELOAD_S)
    s.router.apply([live(s.groups[0], ready=())], {"a": 12.5})
    error = s.submit("loading")
    assert (error.reason, error.retry_after_s) == ("no-replica", pytest.approx(12.5))
    assert s.router.retry_after_s("a") == pytest.approx(12.5)
    s.router.apply([live(s.groups[0])])
    s.submit("ready")
    assert (await s.end())["ready"] == ("served", 1.0)
    assert s.submit("unknown", model="b").reason == "no-replica"


@scene
async def test_a_new_plan_under_load_drops_nobody():
    s = Scene(one_second(groups=4, slo=6.0), groups=2)
    for number in range(8):
        s.submit(str(number))
    await s.at(0.5)
    s.router.apply([live(s.groups[2]), live(s.groups[3])])
    assert s.router.waiting <= 6
    await s.at(1.5)
    s.router.apply([live(one) for one in s.groups])
    fates = await s.end()
    assert {reason for reason, _ in fates.values()} == {"served"}
    assert len(s.groups[0].batches) >= 1


@scene
async def test_who_waits_when_the_last_replica_goes_is_told_when_it_is_too_late():
    s = Scene(one_second(slo=3.5))
    for name in "abc":
        s.submit(name)
    await s.at(0.5)
    s.router.apply([])
    fates = await s.end()
    assert fates["a"] == ("served", 1.0)
    assert fates["b"][0] == fates["c"][0] == "no-replica"
    assert fates["b"][1] == pytest.approx(2.5, abs=1e-3)


@scene
async def test_bounds_by_requests_and_by_tokens():
    s = Scene(one_second(slo=50.0), queue_requests=3, queue_tokens=100)
    for name in "abcd":
        s.submit(name, tokens=10)
    assert s.submit("full").reason == "queue-full"
    await s.at(1.0)
    assert s.submit("long", tokens=81).reason == "queue-full"
    s.submit("short", tokens=80)
    error = s.submit("full again")
    assert error.reason == "queue-full"
    assert error.retry_after_s > 0
    fates = await s.end()
    assert [fates[name][0] for name in ("a", "b", "c", "d", "short")] == ["served"] * 5


@scene
async def test_in_a_full_queue_a_higher_class_takes_a_lower_ones_place():
    s = Scene(one_second(slo=50.0), queue_requests=2)
    s.submit("running")
    s.submit("old", priority="batch")
    s.submit("young", priority="batch")
    s.submit("urgent", priority="interactive")
    assert s.submit("another", priority="batch").reason == "queue-full"
    fates = await s.end()
    assert fates["young"][0] == "expired"
    assert fates["old"][0] == fates["urgent"][0] == "served"


@scene
async def test_lower_classes_make_room_and_come_last():
    s = Scene(one_second(slo=3.0))
    s.submit("running")
    s.submit("batch 1", priority="batch")
    s.submit("batch 2", priority="batch")
    assert s.submit("batch 3", priority="batch").reason == "refused"
    s.submit("standard")
    s.submit("interactive", priority="interactive")
    assert s.submit("standard 2").reason == "refused"
    fates = await s.end()
    assert {name for name, (reason, _) in fates.items() if reason == "served"} == {
        "running",
        "standard",
        "interactive",
    }
    assert fates["batch 1"][0] == fates["batch 2"][0] == "expired"


@scene
async def test_one_who_was_set_aside_comes_back_when_there_is_room():
    s = Scene(one_second(slo=3.0))
    s.submit("running")
    s.submit("batch", priority="batch", slo_s=10.0)
    s.submit("standard 1", slo_s=2.5)
    s.submit("standard 2", slo_s=3.0)
    s.submit("batch tight", priority="batch", slo_s=4.0)
    s.submit("interactive", priority="interactive", slo_s=4.0)
    fates = await s.end()
    assert fates["interactive"][0] == fates["standard 1"][0] == fates["standard 2"][0] == "served"
    assert fates["batch"][0] == "served"
    assert fates["batch tight"][0] == "expired"


@scene
async def test_a_goal_below_what_any_answer_takes_is_called_so():
    s = Scene(one_second(overhead=0.25))
    error = s.submit("absurd", slo_s=0.1)
    assert (error.reason, error.retry_after_s) == ("refused", None)
    assert str(error) == "'a': a goal of 100 ms is below the 250 ms that any answer takes, whatever it computes"
    hasty = s.submit("hasty", slo_s=0.5)
    assert str(hasty) == "'a' cannot answer within 0.500 s: no group could, even with nothing else to do"
    assert_empty(s.router)


@scene
async def test_who_has_no_tenant_is_not_called_one():
    s = Scene(one_second(slo=8.0))
    for number in range(9):
        s.submit(f"nameless {number}")
    for number in range(3):
        s.submit(f"modest {number}", tenant="modest")
    assert s.submit("nameless again").reason == "refused"
    message = s.router.statistics.refusals[-1].message
    assert message == "requests without a tenant hold more than their share of what waits"
    await s.end()


@scene
async def test_fair_share_of_tenants_under_pressure_and_only_then():
    s = Scene(one_second(slo=8.0))
    for number in range(8):
        s.submit(f"greedy {number}", tenant="greedy")
    assert s.router.waiting == 7  # alone, it may have everything
    assert s.submit("greedy too", tenant="greedy").reason == "refused"
    for number in range(3):
        s.submit(f"modest {number}", tenant="modest")
        assert f"modest {number}" not in s.fates
    assert s.submit("greedy again", tenant="greedy").reason == "refused"
    assert "more than its share" in s.router.statistics.refusals[-1].message
    fates = await s.end()
    assert [fates[f"modest {number}"][0] for number in range(3)] == ["served"] * 3
    served = [name for name, (reason, _) in fates.items() if reason == "served"]
    assert len(served) == 8


@scene
async def test_without_pressure_nobody_is_held_to_a_share():
    s = Scene(one_second(slo=50.0))
    s.submit("other", tenant="modest")
    s.submit("other too", tenant="modest")
    for number in range(20):
        s.submit(f"greedy {number}", tenant="greedy")
    assert {reason for reason, _ in (await s.end()).values()} == {"served"}


@scene
async def test_slow_groups_are_learned():
    s = Scene(one_model_world({1: [0.1]}, 1.0, [0.0], 1), pace=2.0)
    for number in range(300):
        await s.at(number * 0.11)
        s.submit(str(number))
    await s.end()
    fates = [s.fates[str(number)] for number in range(300)]
    late = [n for n, (reason, when) in enumerate(fates) if reason == "served" and when > n * 0.11 + 1.0 + 1e-6]
    assert 1.9 < s.router.factors()["g0", "a"] < 2.2
    assert not [n for n in late if n > 60]  # once learned, admission is honest again
    assert sum(reason == "served" for reason, _ in fates) > 140
    s.groups[0].pace = 1.0  # and it is fast again
    for number in range(300, 600):
        await s.at(s.loop.time() + 0.11)
        s.submit(str(number))
    await s.end()
    assert 0.98 < s.router.factors()["g0", "a"] < 1.05
    assert all(s.fates[str(number)][0] == "served" for number in range(500, 600))


@scene
async def test_what_keeps_all_out_is_doubted():
    s = Scene(one_model_world({1: [0.1]}, 0.15, [0.0], 1), pace=2.0)
    for number in range(300):
        if number == 50:
            s.groups[0].pace = 1.0
        await s.at(number * 1.0)
        s.submit(str(number))
    fates = await s.end()
    late = [n for n in range(300) if fates[str(n)][0] == "served" and fates[str(n)][1] > n + 0.15 + 1e-6]
    assert len(late) < 10
    assert fates["40"][0] == "refused"
    assert s.router.statistics.refusals[0].retry_after_s > 0
    assert all(fates[str(n)][0] == "served" for n in range(150, 300))


@scene
async def test_fast_groups_are_learned():
    s = Scene(one_model_world({1: [0.1]}, 0.25, [0.0], 1), pace=0.5)
    for number in range(600):
        await s.at(number * 0.06)
        s.submit(str(number))
    fates = await s.end()
    last = [fates[str(number)][0] for number in range(500, 600)]
    assert last.count("served") >= 90


@scene
async def test_several_inputs_take_longer():
    s = Scene(one_model_world({1: [1.0], 4: [2.0]}, 2.5, [0.0], 1))
    s.submit("wide", inputs=4)
    error = s.submit("wide too", inputs=4)
    assert error.reason == "refused"
    await s.end()


def two_models():
    return World(
        nodes=[node(1)],
        profiles={"p": {"shapes": [shape({1: [1.0], 2: [1.2], 4: [1.5]})]}},
        models=[{"name": name, "profile": "p", "slo": 4.0} for name in "ab"],
        groups=[group(["n/0"], ["a", "b"])],
        arrivals=[(0.0, 0)],
    )


@scene
async def test_a_batch_starts_together():
    s = Scene(two_models())
    for number in range(5):
        s.submit(f"a{number}", "a")
    s.submit("b0", "b")
    fates = await s.end()
    assert {reason for reason, _ in fates.values()} == {"served"}
    assert max(len(members) for _, members in s.groups[0].batches) == 4


def test_bad_groups_are_one_line():
    world = one_second()

    async def main():
        router = Router(world.problem, (Lost,))
        spec = world.plan.groups[0]
        twice = [LiveGroup(name="g", spec=spec, handle=None, ready=("a",)) for _ in range(2)]
        with pytest.raises(ValueError, match="names must differ"):
            router.apply(twice)

    run_virtually(main())
