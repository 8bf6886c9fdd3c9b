"""The controller over emulated workers: plans come and go, groups die, and no request notices more than it must."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from placement.errors import InputError
from placement.planner import default_steps, make_plan
from placement.search.effort import Effort
from router import NotServed, Router
from serving.controller import views
from serving.controller.controller import Controller
from serving.controller.journal import Journal
from serving.controller.probe import probe
from serving.controller.status import explain_text, status_text
from serving.controller.steady import steadily
from serving.sampling import SamplingParams
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.group import GroupLost, RequestFailed
from tests.serving.controller.worlds import EMULATED, chat, embed, group, plan, problem, run, serving, setup, until


def test_a_plan_serves():
    async def work():
        async with serving(plan(group(0), group(1, 2, pp=2))) as controller:
            assert controller.unready() == {}
            assert controller.state_of("chat") == "ready"
            assert len(await chat(controller, "a")) == 20
            assert (await embed(controller, "b")).shape == (1, 4)
            status = views.status(controller)
            assert status["devices"] == {"n/0": "group g0", "n/1": "group g1", "n/2": "group g1", "n/3": "idle"}
            assert [one["kind"] for one in status["groups"]] == ["emulated", "emulated"]
            names = {family.name for family in views.figures(controller)}
            assert {"device_owner", "group_up", "group_deaths", "kv_cache_blocks_used"} <= names

    run(work())


def test_what_cannot_be_told_to_a_group_fails_alone_and_the_group_serves():
    """A path whose bytes are no text, and a token that no message holds."""

    async def work():
        world = problem()
        spec_of = setup().spec_of

        def odd(group, model):
            return msgspec.structs.replace(spec_of(group, model), path="caf\udce9" if model == "embed" else model)

        controller = Controller(world, Router(world, (GroupLost,)), replace(setup(), spec_of=odd))
        await controller.start(plan(group(0)), "a test")
        try:
            [runner] = controller.runners.values()
            assert "embed" in controller.unready()
            assert "this Load cannot be sent" in runner.failed["embed"]
            params = SamplingParams(max_tokens=1)
            with pytest.raises(RequestFailed, match="this Generate cannot be sent") as failed:
                await anext(runner.group.generate("odd", "chat", [2**70], params))
            assert failed.value.code == "invalid"
            assert not runner.group._open
            assert not runner.group._orders
            assert len(await chat(controller, "a")) == 20
        finally:
            await controller.stop(drain_s=0.1)

    run(work())


def test_a_new_plan_drops_nobody():
    """Requests come all the while; groups of every device are replaced, back and forth."""

    async def work():
        plans = [plan(group(0, 1, pp=2), group(2)), plan(group(0), group(1), group(2, 3, pp=2))]
        async with serving(plans[0]) as controller:
            done = asyncio.Event()

            async def client(number):
                served = 0
                while not done.is_set():
                    tokens = await chat(controller, f"c{number}-{served}")
                    assert len(tokens) == 20
                    await embed(controller, f"e{number}-{served}")
                    served += 1
                return served

            clients = [asyncio.create_task(client(number)) for number in range(6)]
            for turn in range(4):
                await asyncio.sleep(0.1)
                change = await controller.apply(plans[(turn + 1) % 2], "a test")
                assert change.fresh
                assert controller.unready() == {}
            done.set()
            assert min(await asyncio.gather(*clients)) >= 2
            assert controller.in_force.plan == plans[0]
            owners = {device: str(owner) for device, owner in controller.ledger.owners.items()}
            held = {device: f"group {one.name}" for one in controller.runners.values() for device in one.spec.devices}
            assert owners == {"n/3": "idle"} | held
            assert controller.router.running == 0

    run(work())


def test_without_room_for_both_open_requests_still_finish():
    async def work():
        async with serving(plan(group(0, 1, pp=2)), problem(memory=300)) as controller:
            open_request = asyncio.create_task(chat(controller, "long", tokens=60))
            await asyncio.sleep(0.05)
            change = await controller.apply(plan(group(0), group(1)), "a test")
            assert not any(fresh.beside for fresh in change.fresh)
            assert len(await open_request) == 60
            assert len(await chat(controller, "after")) == 20
            assert sorted(controller.runners) == ["g1", "g2"]

    run(work())


def test_models_come_and_go_on_a_group_that_stays():
    async def work():
        async with serving(plan(group(0, models=["chat"]))) as controller:
            assert controller.unready() == {"embed": "no group of the plan holds it"}
            with pytest.raises(NotServed, match="no group serves"):
                await embed(controller, "a")
            open_request = asyncio.create_task(chat(controller, "long", tokens=60))
            await asyncio.sleep(0.05)
            await controller.apply(plan(group(0, models=["embed"])), "a test")
            assert len(await open_request) == 60
            assert list(controller.runners) == ["g0"]
            assert (await embed(controller, "b")).shape == (1, 4)
            assert controller.state_of("chat") == "unplaced"

    run(work())


def test_a_dead_group_comes_back_and_its_requests_go_elsewhere():
    async def work():
        async with serving(plan(group(0), group(1))) as controller:
            runner = controller.runners["g0"]
            runner.group.handles[0].kill()
            answers = await asyncio.gather(*(embed(controller, str(number)) for number in range(10)))
            assert len(answers) == 10
            await until(lambda: runner.deaths == 1 and runner.state == "serving")
            assert controller.router.ready_groups("chat") == ["g0", "g1"]
            moves = views.explain_moves(controller)["moves"]
            assert [move["what"] for move in moves if move.get("group") == "g0"] == ["serving", "lost", "serving"]

    run(work())


def test_a_group_that_dies_again_and_again_is_given_time(monkeypatch):
    monkeypatch.setattr("serving.controller.runner.BACK_OFF_S", (0.0, 0.6))

    async def work():
        async with serving(plan(group(0))) as controller:
            runner = controller.runners["g0"]
            for deaths in (1, 2):
                runner.group.give_up("a test")
                await until(lambda deaths=deaths: runner.deaths == deaths)
                began = asyncio.get_running_loop().time()
                if deaths == 2:
                    assert controller.unready()["chat"] == "down on group g0: a test"
                await until(lambda: runner.state == "serving")
            assert asyncio.get_running_loop().time() - began >= 0.59

    run(work())


def test_what_cannot_be_started_leaves_the_old_plan_in_force():
    class Unwilling(EmulatedLauncher):
        async def start(self, spec):
            if spec.device == "cpu:3":
                raise InputError(f"{spec.name}: there is no such device")
            return await super().start(spec)

    async def work():
        first = plan(group(0))
        async with serving(first, launcher=Unwilling(EMULATED)) as controller:
            with pytest.raises(InputError, match=r"the old plan stays.*no such device"):
                await controller.apply(plan(group(1), group(3)), "a test")
            assert controller.in_force.plan is first
            assert list(controller.runners) == ["g0"]
            assert len(await chat(controller, "a")) == 20
            with pytest.raises(InputError, match="no device 'n/9'"):
                await controller.apply(plan(group(9)), "a test")

    run(work())


def test_a_model_that_cannot_be_loaded_leaves_the_others_alone():
    async def work():
        launcher = EmulatedLauncher({"embed": EMULATED["embed"]})
        async with serving(plan(group(0)), launcher=launcher) as controller:
            assert (await embed(controller, "a")).shape == (1, 4)
            assert "down on group g0" in controller.unready()["chat"]
            assert views.status(controller)["groups"][0]["models"]["chat"]["error"]

    run(work())


def test_what_could_not_be_loaded_is_tried_again_and_the_reason_told(monkeypatch):
    monkeypatch.setattr("serving.controller.runner.LOAD_AGAIN_S", (0.02, 0.05))

    async def work():
        launcher = EmulatedLauncher({"embed": EMULATED["embed"]})
        async with serving(plan(group(0)), launcher=launcher) as controller:
            runner = controller.runners["g0"]
            reason = runner.failed["chat"]
            assert reason in views.status(controller)["models"]["chat"]["reason"]
            assert reason in status_text(views.status(controller))
            assert views.explain_plan(controller)["not_as_planned"] == {"chat on g0": reason}
            assert reason in explain_text("plan", views.explain_plan(controller))

            def failures():
                return [move for move in views.explain_moves(controller)["moves"] if move["what"] == "not loaded"]

            await until(lambda: len(failures()) >= 3)
            launcher._models["chat"] = EMULATED["chat"]
            await until(lambda: controller.state_of("chat") == "ready")
            assert runner.deaths == 0
            assert not runner.failed
            assert controller.unready() == {}
            assert len(await chat(controller, "a")) == 20

    run(work())


def test_a_model_that_answers_no_first_probe_goes_and_is_loaded_again(monkeypatch):
    monkeypatch.setattr("serving.controller.runner.LOAD_AGAIN_S", (0.02,))
    asked = []

    async def refuse_once(group, model, how):
        asked.append(model)
        if asked.count("chat") == 1 and model == "chat":
            raise RequestFailed("invalid", "not today")
        await probe(group, model, how)

    monkeypatch.setattr("serving.controller.runner.probe", refuse_once)

    async def work():
        async with serving(plan(group(0))) as controller:
            await until(lambda: controller.state_of("chat") == "ready")
            assert asked.count("chat") == 2
            assert [move["reason"] for move in views.explain_moves(controller)["moves"] if "reason" in move] == [
                "not today"
            ]
            assert len(await chat(controller, "a")) == 20

    run(work())


def test_parked_models_wake_in_turn():
    async def work():
        specs = [group(0, models=[], parked=["embed"]), group(1, models=["chat"])]
        async with serving(plan(*specs), problem_with_host()) as controller:
            assert controller.state_of("embed") == "parked"
            assert controller.unready() == {}
            answers = await asyncio.gather(*(embed(controller, str(number)) for number in range(5)))
            assert len(answers) == 5
            assert controller.runners["g0"].handle.awake == "embed"

    run(work())


def problem_with_host():
    world = problem()
    node = msgspec.structs.replace(world.cluster.nodes[0], host_memory=10_000)
    return replace(world, cluster=type(world.cluster)((node,)))


def test_stopping_lets_open_requests_finish():
    async def work():
        async with serving(plan(group(0))) as controller:
            asked = asyncio.create_task(chat(controller, "a", tokens=40))
            await asyncio.sleep(0.05)
            await controller.stop(drain_s=5.0)
            assert len(await asked) == 40
            assert controller.runners["g0"].state == "stopped"
            with pytest.raises(NotServed):
                await chat(controller, "b")

    run(work())


def test_a_plan_is_explained_with_what_was_weighed_instead():
    async def work():
        steps = default_steps(problem())
        found = make_plan(problem(), effort=Effort(steps=steps))
        async with serving(found) as controller:
            told = views.explain_plan(controller)
            assert told["alternatives"], "two models on four devices can be placed in many ways"
            for one in told["alternatives"]:
                assert one["attainment"] <= told["predicted"]["upper_bound"] + 1e-9
                assert {name for each in one["groups"] for name in each["models"]} == {"chat", "embed"}
            shown = explain_text("plan", told)
            assert "weighed instead" in shown
            assert f"{told['alternatives'][0]['attainment']:.2%}" in shown

    run(work(), 300)


def test_what_goes_wrong_beside_the_requests_is_told_once_and_tried_again():
    async def work():
        journal, looks = Journal(), []

        async def look():
            looks.append(1)
            if len(looks) < 4:
                raise KeyError("gone")

        task = asyncio.create_task(steadily(0.001, look, journal, "probes"))
        await until(lambda: len(looks) > 5)
        task.cancel()
        assert [event.facts["reason"] for event in journal.events("probes")] == ["KeyError: 'gone'"]

    run(work())


def test_a_fresh_group_has_its_devices_before_anybody_else_and_gives_them_back_if_it_fails():
    async def work():
        async with serving(plan(group(0))) as controller:
            asked = []

            async def leave(needed):
                asked.append(list(needed))

            controller.before_change = leave
            change = asyncio.create_task(controller.apply(plan(group(0), group(1, 2, pp=2)), "a test"))
            await until(lambda: str(controller.ledger.owners["n/2"]) == "group g1")
            assert asked == [["n/1", "n/2"]]
            await change
            broken = plan(group(0), group(1, 2, pp=2), group(3))
            controller._setup.launcher._models.clear()
            with pytest.raises(InputError):
                await controller.apply(broken, "a test")
            assert str(controller.ledger.owners["n/3"]) == "idle"

    run(work())
