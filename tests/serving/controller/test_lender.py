"""Groups lend their devices and have them back: real links and emulated workers, a borrower that takes its time."""

import asyncio
import contextlib
import time

import pytest

from placement.capacity import Rung, with_rungs
from serving.config import LoansConfig
from serving.controller.ledger import IDLE, Owner
from serving.controller.lender import Lender
from serving.controller.status import explain_text
from tests.serving.controller.worlds import chat, embed, group, plan, run, serving, until
from training.lending import Held

QUICK = LoansConfig(minimum=1)


class Job:
    """Takes what is lent at once, and gives it back after a while."""

    def __init__(self, ledger, gives_back_s=0.05):
        self._ledger, self._gives_back_s = ledger, gives_back_s
        self.has = set()
        self.is_there = True
        self.spare = set()
        """Of these it could lose any, and go on elsewhere."""

    def open_to_jobs(self, devices):
        self._ledger.move(devices, IDLE, Owner("job", "a"))
        self.has |= set(devices)

    def held(self):
        return [Held(device, (device,), fewest=device not in self.spare) for device in sorted(self.has)]

    def wants(self):
        return self.is_there

    def recall(self, devices):
        def give_back():
            self._ledger.move(devices, Owner("job", "a"), IDLE)
            self.has -= set(devices)

        asyncio.get_running_loop().call_later(self._gives_back_s, give_back)


def two_groups(holds=0.05):
    """The second can be lent while demand is below `holds`, in seconds of a device a second."""
    first = plan(group(0), group(1))
    first = type(first)(first.groups, ((1,),))
    return with_rungs(first, (Rung((), 100.0), Rung((1,), holds)))


def three_groups():
    """All alike. The plan names the third first; without it they hold all there is, without two next to nothing."""
    first = plan(group(0), group(1), group(2))
    first = type(first)(first.groups, ((2,), (1, 2)))
    return with_rungs(first, (Rung((), 100.0), Rung((2,), 50.0), Rung((1, 2), 0.05)))


@contextlib.asynccontextmanager
async def lending(settings=QUICK, gives_back_s=0.05, holds=0.05, of=None):
    async with serving(of or two_groups(holds)) as controller:
        job = Job(controller.ledger, gives_back_s)
        lender = Lender(controller, job, settings)
        task = asyncio.create_task(lender.run())
        try:
            yield controller, lender, job
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def burst(controller, count):
    return await asyncio.gather(*(embed(controller, f"e{number}-{time.monotonic()}") for number in range(count)))


def test_a_device_is_lent_when_it_is_calm_and_back_when_it_is_not():
    async def work():
        async with lending() as (controller, lender, job):
            await until(lambda: job.has == {"n/1"})
            assert controller.ledger.owners["n/1"] == Owner("job", "a")
            assert controller.router.ready_groups("chat") == ["g0"]
            assert len(await chat(controller, "c")) == 20  # the other group serves
            answers = await burst(controller, 20)
            assert len(answers) == 20
            await until(lambda: not lender.loans)
            assert controller.ledger.owners["n/1"] == Owner("group", "g1")
            assert controller.router.ready_groups("chat") == ["g0", "g1"]
            told = lender.told()
            assert [one["to"] for one in told["decisions"]][:2] == [1, 0]
            assert told["decisions"][1]["returned_s"]["g1"] < 1
            await until(lambda: job.has == {"n/1"})  # and again, once it is calm

    run(work())


def test_of_groups_that_are_alike_the_one_comes_back_that_training_misses_least():
    async def work():
        async with lending(of=three_groups()) as (controller, lender, job):
            await until(lambda: job.has == {"n/1", "n/2"})
            job.spare = {"n/2"}
            assert [one["group"] for one in lender.told()["comes_back_first"]] == ["g2", "g1"]
            assert "stops n/1, cost 1" in explain_text("loans", lender.told())
            await burst(controller, 20)
            await until(lambda: job.has == {"n/1"})  # the plan's first rung would lend the other
            told = next(one for one in lender.told()["decisions"] if "victims" in one)
            assert [one["group"] for one in told["victims"]] == ["g2"]
            assert "; g2: its jobs shrink" in explain_text("loans", lender.told())
            await until(lambda: job.has == {"n/1", "n/2"})

    run(work())


def test_requests_wait_at_the_gate_of_a_group_that_comes_back():
    async def work():
        async with lending(gives_back_s=0.5) as (controller, _, job):
            await until(lambda: job.has)
            runner = controller.runners["g1"]
            began = time.monotonic()
            answers = asyncio.create_task(burst(controller, 40))
            await until(lambda: not runner.is_lent)
            asked = asyncio.create_task(chat_on(runner, "direct"))
            await asyncio.sleep(0.1)
            assert not asked.done()
            assert len(await asked) == 3
            assert time.monotonic() - began >= 0.5
            assert len(await answers) == 40

    async def chat_on(runner, name):
        from serving.sampling import SamplingParams

        params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
        return [one async for one in runner.handle.generate(name, "chat", [1, 2], params)]

    run(work())


def test_who_suggests_lends_nothing():
    async def work():
        async with lending(LoansConfig(mode="suggest", minimum=1)) as (_, lender, job):
            await until(lambda: lender.verdict.depth == 1)
            await asyncio.sleep(0.2)
            assert not job.has
            assert lender.told()["decisions"][0]["to"] == 1

    run(work())


def test_a_new_plan_has_all_devices():
    async def work():
        async with lending() as (controller, lender, job):
            await until(lambda: job.has)
            await controller.apply(plan(group(0, 1, pp=2)), "a test")
            assert not job.has
            assert not lender.loans
            assert {str(owner) for owner in controller.ledger.owners.values()} == {"group g2", "idle"}
            assert len(await chat(controller, "c")) == 20
            await until(lambda: lender.told()["now"]["rungs"] == [])

    run(work())


def test_a_group_that_dies_while_it_is_lent_is_there_when_it_is_needed():
    async def work():
        async with lending() as (controller, lender, job):
            await until(lambda: job.has)
            runner = controller.runners["g1"]
            runner.group.give_up("killed by a test")
            await until(lambda: runner.deaths == 1)
            await until(lambda: runner.state == "starting" and runner.met.is_set() and runner.group is not None)
            assert not runner.ready  # it may not load: the device is somebody else's
            await burst(controller, 20)
            await until(lambda: runner.state == "serving" and not lender.loans)
            assert controller.router.ready_groups("chat") == ["g0", "g1"]

    run(work())


@pytest.mark.parametrize("gives_back_s", [0.0, 0.3])
def test_nothing_is_lost_through_many_loans(gives_back_s):
    async def work():
        async with lending(gives_back_s=gives_back_s) as (controller, lender, job):
            for _ in range(4):
                await until(lambda: job.has)
                answers = await asyncio.gather(burst(controller, 15), *(chat(controller, f"{n}") for n in range(4)))
                assert len(answers[0]) == 15
                assert all(len(one) == 20 for one in answers[1:])
                await until(lambda: not job.has)
            assert controller.router.statistics.missed == 0
            await until(lambda: not controller.router.running)
            await until(lambda: lender.recalls >= 4)
            assert lender.lent_s > 0

    run(work())


def test_a_group_that_dies_beside_a_loan_calls_it_back(monkeypatch):
    monkeypatch.setattr("serving.controller.runner.BACK_OFF_S", (1.0,))

    async def work():
        async with lending() as (controller, lender, job):
            await until(lambda: job.has)
            controller.runners["g0"].group.give_up("killed by a test")
            await until(lambda: not job.has)
            assert controller.router.ready_groups("chat") == ["g1"]
            assert any("g0: not there" in one["why"] for one in lender.told()["decisions"])
            await until(lambda: job.has == {"n/1"})  # when it is back

    run(work())


def test_nothing_is_lent_while_nobody_would_train(monkeypatch):
    monkeypatch.setattr("serving.controller.lender.REST_S", 0.3)

    async def work():
        async with lending() as (controller, lender, job):
            job.is_there = False
            await until(lambda: lender.verdict.why == "no job is there to train")
            assert lender.verdict.depth == 0
            assert not job.has
            job.is_there = True
            await until(lambda: job.has == {"n/1"})
            job.is_there = False  # it has ended: the device is not kept for nobody
            await until(lambda: controller.ledger.owners["n/1"] == Owner("group", "g1"))
            assert lender.decisions[-1]["why"] == "no job is there to train"

    run(work())


def test_a_loan_that_could_not_begin_is_not_tried_again_at_once(monkeypatch):
    monkeypatch.setattr("serving.controller.lender.DRAIN_S", 0.05)

    async def work():
        async with lending(holds=100.0) as (controller, lender, job):
            job.is_there = False
            await until(lambda: lender.verdict.why == "no job is there to train")
            talks = [asyncio.create_task(chat(controller, f"c{number}", tokens=400)) for number in range(4)]
            job.is_there = True
            given_up = lambda: [one for one in controller.journal.events("loan") if one.what == "given up"]  # noqa: E731
            await until(given_up)
            await asyncio.sleep(0.5)
            assert len(given_up()) == 1
            assert all(len(tokens) == 400 for tokens in await asyncio.gather(*talks))

    run(work())
