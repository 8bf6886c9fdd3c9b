"""What the dashboard and the terminal show of a controller over emulated workers."""

import io
import time
from dataclasses import replace

import msgspec
from rich.console import Console

from placement.problem import Slo
from router import NotServed, Request
from serving.config import ExpertsConfig, ReplanConfig
from serving.controller.experts import ExpertKeeper
from serving.controller.glance import Glance
from serving.controller.replan import Judged, Replanner, Suggestion
from serving.controller.watch import glance as on_terminal
from serving.dashboard import Holder
from serving.dashboard.recorder import Recorder
from serving.http.meters import Meters
from tests.serving.controller.test_lender import lending
from tests.serving.controller.worlds import chat, embed, group, plan, problem, run, serving, until


def glance_at(controller, lender=None):
    replanner = Replanner(controller, ReplanConfig())
    source = Glance(controller, replanner, ExpertKeeper(controller, {}, ExpertsConfig()), lender, None)
    recorder = Recorder(source, controller.router.statistics, Meters(["chat", "embed"]))
    controller.ledger.on_move = recorder.note_holders
    return source, recorder, replanner


def test_what_is_shown_can_be_written_down_and_is_true():
    async def work():
        async with serving(plan(group(0, 1, pp=2), group(2))) as controller:
            source, recorder, _ = glance_at(controller)
            recorder.tick()
            await chat(controller, "c")
            await embed(controller, "e")
            told = msgspec.json.decode(msgspec.json.encode(recorder.view()))
            kinds = {one["name"]: (one["kind"], one["owner"]) for one in told["devices"]}
            assert kinds == {
                "n/0": ("group", "g0"),
                "n/1": ("group", "g0"),
                "n/2": ("group", "g1"),
                "n/3": ("idle", ""),
            }
            assert [(one["tp"], one["pp"], one["state"]) for one in told["groups"]] == [
                (1, 2, "serving"),
                (1, 1, "serving"),
            ]
            models = {one["name"]: one for one in told["models"]}
            assert models["chat"]["requests"] == models["chat"]["met"] == 1
            assert models["embed"]["goal"] == {"end_to_end": 20.0}
            assert told["troubles"] == []
            assert await source.jobs() == []
            assert await source.job("none") is None
            assert source.experts() == []
            marks = recorder.history()["marks"]
            assert [mark.title for mark in marks if mark.kind == "plan"] == ["Plan started"]

    run(work())


def test_trouble_says_which_model_and_why():
    async def work():
        world = problem()
        hasty = replace(world, models=(world.models[0], replace(world.models[1], slo=Slo(end_to_end=0.001))))
        async with serving(plan(group(0)), hasty) as controller:
            _, recorder, _ = glance_at(controller)
            for number in range(3):
                try:
                    controller.router.submit(Request(id=f"r{number}", model="embed", tokens=3), None)
                except NotServed:
                    continue
                raise AssertionError("it can hardly be answered in a millisecond")
            recorder.tick()
            [trouble] = recorder.view()["troubles"]
            assert (trouble["model"], trouble["in_time"]) == ("embed", 0.0)
            assert trouble["why"][0] == "not served in the last minute: 3 refused"
            assert "cannot answer within 0.001 s" in trouble["why"][1]
            refused = [mark for mark in recorder.history()["marks"] if mark.kind == "refusal"]
            assert len(refused) == 1  # not one for each
            assert trouble["why"][1] == f"the last of them: {refused[0].facts['message']}"

    run(work())


def test_loans_are_marked_with_what_was_weighed_and_owners_to_the_moment():
    async def work():
        async with lending() as (controller, lender, job):
            _, recorder, _ = glance_at(controller, lender)
            recorder.tick()
            await until(lambda: job.has == {"n/1"})
            recorder.tick()
            shown = next(one for one in recorder.view()["devices"] if one["name"] == "n/1")
            assert (shown["kind"], shown["owner"], shown["lent_by"]) == ("job", "a", "g1")
            for number in range(20):
                await embed(controller, f"e{number}")
            await until(lambda: not lender.loans)
            recorder.tick()
            history = recorder.history()
            owners = [(one.kind, one.name) for one in history["changes"] if one.device == "n/1"]
            assert owners[:4] == [("group", "g1"), ("idle", ""), ("job", "a"), ("idle", "")]
            assert owners[4] == ("group", "g1")
            titles = [mark.title for mark in history["marks"] if mark.kind == "loan"]
            assert [title for title in titles if title.startswith("Decided")][:2] == [
                "Decided to lend",
                "Decided to take back",
            ]
            assert {"g1 lent", "g1 back"} <= set(titles)
            lent = next(mark for mark in history["marks"] if mark.title == "Decided to lend")
            assert {"drained", "load", "open", "why"} <= set(lent.facts["weighed"][0])

    run(work())


def test_a_group_that_is_lost_is_dead_until_it_serves():
    async def work():
        async with serving(plan(group(0))) as controller:
            source, recorder, _ = glance_at(controller)
            recorder.tick()
            runner = controller.runners["g0"]
            runner.group.handles[0].kill()
            await until(lambda: source.holders()["n/0"] == Holder("dead", "g0"), 20)
            recorder.tick()
            await until(lambda: runner.state == "serving", 30)
            recorder.tick()
            history = recorder.history()
            assert [one.kind for one in history["changes"] if one.device == "n/0"] == ["group", "dead", "group"]
            assert [mark.title for mark in history["marks"] if mark.kind == "death"] == ["g0 lost"]

    run(work())


def test_a_suggestion_says_what_would_change_and_goes_when_it_is_applied():
    async def work():
        first = plan(group(0), group(1, models=["chat"]))
        async with serving(first) as controller:
            _, recorder, replanner = glance_at(controller)
            larger = msgspec.structs.replace(group(0), kv_bytes={"chat": 200})
            better = plan(larger, group(1), group(2, 3, pp=2))
            now, then = Judged(0.2, 0.7), Judged(0.0, 0.99)
            replanner._suggestion = Suggestion(better, controller.in_force.plan, time.time(), 300, now, then)
            found = recorder.view()["planner"]["suggestion"]
            steps = [
                (one["what"], one["group"], list(one["devices"]), list(one["adds"]), list(one["also"]))
                for one in found["steps"]
            ]
            assert steps == [
                ("change", "g0", ["n/0"], [], ["cache of chat 9.537e-05 MiB, then 0.0001907 MiB"]),
                ("change", "g1", ["n/1"], ["embed"], []),
                ("start", "", ["n/2", "n/3"], ["chat", "embed"], []),
            ]
            assert found["then"]["attainment"] == 0.99
            await controller.apply(better, "an operator's wish")
            assert recorder.view()["planner"]["suggestion"] is None
            assert replanner.told() is None

    run(work())


def test_the_terminal_shows_the_same():
    async def work():
        async with serving(plan(group(0, 1, pp=2), group(2))) as controller:
            _, recorder, _ = glance_at(controller)
            recorder.tick()
            await embed(controller, "e")
            snapshot = recorder.history() | {"now": recorder.view() | {"jobs": [JOB]}}
            return msgspec.json.decode(msgspec.json.encode(snapshot))

    console = Console(width=140, record=True, file=io.StringIO())
    console.print(on_terminal(run(work())))
    shown = console.export_text()
    for words in (
        "3 serving, 0 training, 1 idle",
        "group g1",
        "embed",
        "100.0%",
        "nothing is lent",
        "step 3 of 9",
        "Plan started",
    ):
        assert words in shown


JOB = {
    "id": "lesson",
    "state": "running",
    "devices": ["n/3"],
    "share": 0.3,
    "step": 3,
    "steps": 9,
    "loss": 1.5,
    "ended": None,
    "expected": 1e9,
}
