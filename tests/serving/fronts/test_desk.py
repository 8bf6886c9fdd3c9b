"""A front end and the desk of the process that routes, in one process, over a real link."""

import asyncio
import contextlib

import numpy as np
import pytest

from placement.errors import InputError
from router import Request
from router.request import NotServed
from serving.fronts.counts import add_counts, take_counts
from serving.fronts.desk import SETTINGS, Desk
from serving.fronts.messages import Close, Join, ToFront
from serving.fronts.remote import RemoteRouter
from serving.http.meters import Meters
from serving.sampling import SamplingParams
from serving.worker.connect import connect
from serving.worker.group import RequestFailed
from serving.worker.link import LinkError
from serving.worker.scratch import Scratch
from tests.serving.controller import worlds

SECRET = b"known to both of them"


@contextlib.asynccontextmanager
async def fronts(count=1, address=None, secret=None):
    """(controller, desk, front ends) over emulated groups."""
    async with worlds.serving(worlds.plan(worlds.group(0), worlds.group(1))) as controller:
        desk = Desk(controller.router, Meters(["chat", "embed"]), None, "1")
        with Scratch() as folder:
            where = await desk.open(address or f"unix:{folder}/desk", secret)
            found = []
            for _ in range(count):
                router = RemoteRouter()
                router.link = await connect(where, ToFront, router.take, ignore, secret=secret, settings=SETTINGS)
                router.link.send(Join("1", ["chat", "embed"]))
                found.append(router)
            await worlds.until(lambda: desk.fronts == count)
            yield controller, desk, found
            await desk.stop(0.0)


def ignore(link, what):
    pass


async def chat(router, name, tokens=20, model="chat", prompt=(1, 2), **more):
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    request = Request(id=name, model=model, tokens=3, max_tokens=tokens, prompt=prompt, **more)
    stream = router.submit(request, lambda group: group.generate(name, model, list(prompt), params))
    return [one.token async for one in stream]


async def embed(router, name):
    async def work(group):
        yield await group.infer(name, "embed", [[1, 2, 3], [4]])

    request = Request(id=name, model="embed", tokens=4, inputs=2)
    return next(iter([answer async for answer in router.submit(request, work)]))


def test_requests_are_answered_as_if_the_router_were_here():
    async def scenario():
        async with fronts(2) as (controller, desk, (one, other)):
            answers = await asyncio.gather(
                *(chat(front, f"{n}{front is one}") for n in range(8) for front in (one, other))
            )
            assert [len(tokens) for tokens in answers] == [20] * 16
            values = await embed(one, "e")
            assert (values.shape, values.dtype) == ((2, 4), np.float32)
            assert (controller.router.running, controller.router.waiting) == (0, 0)
            counted = desk._meters.models["chat"]
            assert (counted.running, counted.waiting, sum(counted.queue_time.counts)) == (0, 0, 16)

    worlds.run(scenario())


def test_what_is_not_served_says_why():
    async def scenario():
        async with fronts() as (_, _, (front,)):
            with pytest.raises(NotServed) as told:
                await chat(front, "r", slo_s=1e-6)
            assert told.value.reason == "refused"
            with pytest.raises(NotServed, match="no model is named"):
                await chat(front, "x", model="none")
            with pytest.raises(RequestFailed):
                await chat(front, "y", prompt=[10**6])

    worlds.run(scenario())


def test_a_request_that_is_left_is_given_up_and_one_that_has_enough_counts_as_answered():
    async def scenario():
        async with fronts() as (controller, _, (front,)):
            params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
            for name, finishes in (("a", False), ("b", True)):
                request = Request(id=name, model="chat", tokens=3, max_tokens=500)
                stream = front.submit(request, lambda group, name=name: group.generate(name, "chat", [1], params))
                assert (await anext(stream)).token is not None
                assert controller.router.running == 1
                await (stream.finish() if finishes else stream.aclose())
                await worlds.until(lambda: controller.router.running == 0)
            counts = controller.router.statistics.of("chat", "standard")
            assert counts.judged == 1

    worlds.run(scenario())


def test_a_front_end_that_is_gone_takes_its_own_requests_along_and_no_others():
    async def scenario():
        async with fronts(2) as (controller, desk, (one, other)):
            lost = [asyncio.create_task(chat(one, f"l{n}", 200)) for n in range(3)]
            kept = [asyncio.create_task(chat(other, f"k{n}", 100)) for n in range(3)]
            await worlds.until(lambda: controller.router.running == 6)
            one.link._end("killed", at_once=True)
            await worlds.until(lambda: desk.fronts == 1)
            await worlds.until(lambda: controller.router.running <= 3)
            assert [len(tokens) for tokens in await asyncio.gather(*kept)] == [100] * 3
            for task in lost:
                task.cancel()
            await asyncio.gather(*lost, return_exceptions=True)
            with pytest.raises(NotServed, match="gone"):
                await chat(one, "late")

    worlds.run(scenario())


def test_a_front_end_on_another_host_proves_that_it_knows_the_secret():
    async def scenario():
        async with fronts(1, "tcp:127.0.0.1:0", SECRET) as (_, desk, (front,)):
            assert len(await chat(front, "r")) == 20
            assert (await embed(front, "e")).shape == (2, 4)
            where = desk._listeners[0].address
            with pytest.raises(LinkError, match="the listener refuses our secret"):
                await connect(where, ToFront, front.take, ignore, secret=b"another secret!!", settings=SETTINGS)
            with pytest.raises(InputError, match="needs a secret"):
                await connect(where, ToFront, front.take, ignore, settings=SETTINGS)
            assert desk.fronts == 1
            with pytest.raises(InputError, match="needs a secret"):
                await desk.open("tcp:127.0.0.1:0")

    worlds.run(scenario())


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (Join("2", ["chat"]), "the front end is of version 2, the server of 1"),
        (Join("1", ["chat", "poet"]), "serves 'poet', which the server does not know"),
        (Close("r", answered=True), "must say what it is"),
    ],
)
def test_a_front_end_that_does_not_fit_is_told_why(first, why):
    async def scenario():
        async with fronts(1, "tcp:127.0.0.1:0", SECRET) as (_, desk, _):
            told = []
            link = await connect(
                desk._listeners[0].address, ToFront, ignore, lambda _, reason: told.append(reason), secret=SECRET
            )
            link.send(first)
            await worlds.until(lambda: told)
            assert why in told[0]
            assert desk.fronts == 1

    worlds.run(scenario())


def test_a_desk_that_stops_lets_open_requests_end_and_takes_no_more():
    async def scenario():
        async with fronts() as (controller, desk, (front,)):
            begun = asyncio.create_task(chat(front, "r", 50))
            await worlds.until(lambda: controller.router.running == 1)
            stopping = asyncio.create_task(desk.stop(10.0))
            with pytest.raises(NotServed, match="the server is stopping"):
                await chat(front, "late")
            assert len(await begun) == 50
            await stopping
            await worlds.until(lambda: desk.fronts == 0)

    worlds.run(scenario())


def test_counts_of_front_ends_add_up_and_stay_when_one_is_gone():
    async def scenario():
        async with fronts(2) as (_, desk, (one, other)):
            for front in (one, other):
                meters = Meters(["chat", "embed"])
                meters.models["chat"].output_tokens = 5
                meters.models["chat"].ttft.observe(0.01)
                meters.models["chat"].finished["stop"] = 2
                meters.answers["/v1/completions", 200] = 3
                meters.open = 1
                front.link.send(take_counts(meters))
            await worlds.until(lambda: len(desk.counts()) == 2)
            one.link._end("killed", at_once=True)
            await worlds.until(lambda: desk.fronts == 1)
            total = Meters(["chat", "embed"])
            add_counts(total, desk.counts())
            chat_counts = total.models["chat"]
            assert (chat_counts.output_tokens, sum(chat_counts.ttft.counts), chat_counts.finished["stop"]) == (10, 2, 4)
            assert (total.answers["/v1/completions", 200], total.open) == (6, 1)

    worlds.run(scenario())
