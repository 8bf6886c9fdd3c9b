"""Groups of real worker processes, as their controller sees them."""

import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from placement.errors import InputError
from serving.sampling import SamplingParams
from serving.small_models.random import make_random
from serving.worker.connect import connect
from serving.worker.event_loop import run
from serving.worker.group import GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.link import LinkError
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec, Report
from serving.worker.places import Tcp, make_places
from tests.serving.models.tiny import reference_logits, save

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
ENDLESS = SamplingParams(max_tokens=240, temperature=1.0)
PROMPTS = {f"r{index}": [(3 * index + 7 * place) % 99 for place in range(3 + 5 * index)] for index in range(4)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in ("llama", "mixtral", "bert"):
        save(name, root)
    return root


def spec(models, name, **options):
    return ModelSpec(name=name, path=str(models / name), kv_bytes=4_000_000, **options)


@contextlib.asynccontextmanager
async def running(tp=1, pp=1, **options):
    devices = tuple(f"cpu:{core}" for core in range(tp * pp))
    group = await start_group(GroupSpec(name="g", devices=devices, tp=tp, pp=pp, **options), LocalLauncher())
    try:
        yield group
    finally:
        await group.stop()
        assert not any(is_alive(handle.pid) for handle in group.handles)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()


async def collect(group, model, request, prompt, params=GREEDY):
    return [output async for output in group.generate(request, model, prompt, params)]


async def texts(group, model):
    streams = (collect(group, model, request, prompt) for request, prompt in PROMPTS.items())
    return [[output.token for output in outputs] for outputs in await asyncio.gather(*streams)]


def expected(model):
    """What `transformers` continues each prompt with."""

    def follows(prompt, tokens):
        return reference_logits(model, prompt + tokens)[len(prompt) - 1 : -1].argmax(dim=-1).tolist()

    return [lambda tokens, prompt=prompt: follows(prompt, tokens) == tokens for prompt in PROMPTS.values()]


def check_texts(model, tokens):
    assert all(len(one) == 24 for one in tokens)
    assert all(check(one) for check, one in zip(expected(model), tokens, strict=True))


def test_a_split_group_serves_several_models_and_their_whole_life(models):
    async def scenario():
        async with running(tp=2, pp=2) as group:
            facts = await group.load(spec(models, "llama"))
            assert facts["blocks"] > 0
            await group.load(spec(models, "mixtral"))
            await group.load(spec(models, "bert"))
            llama, mixtral, vectors = await asyncio.gather(
                texts(group, "llama"),
                collect(group, "mixtral", "m", PROMPTS["r1"]),
                group.infer("e", "bert", [[1, 2, 3], [4, 5, 6, 7]]),
            )
            assert vectors.shape == (2, 32)
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
            await group.echo()
            await check_errors(group, models)
            await check_sampling(group)
            await group.suspend("llama")
            with pytest.raises(RequestFailed, match="suspended"):
                await collect(group, "llama", "s", [1, 2])
            await group.resume("llama")
            again = await texts(group, "llama")
            busy_s = group.states["llama"].busy_s
            assert len(busy_s) == 2
            assert all(0 < seconds < 60 for seconds in busy_s)
            await group.unload("bert")
            with pytest.raises(RequestFailed, match="not on group"):
                await group.infer("e", "bert", [[1, 2, 3]])
            await check_cancel(group)
            await check_drain(group)
        return llama, [output.token for output in mixtral], again

    llama, mixtral, again = run(asyncio.wait_for(scenario(), 120))
    check_texts("llama", llama)
    check_texts("llama", again)
    assert expected("mixtral")[1](mixtral)


async def check_errors(group, models):
    with pytest.raises(InputError, match="already"):
        await group.load(spec(models, "llama"))
    with pytest.raises(InputError, match="no such directory"):
        await group.load(ModelSpec(name="x", path=str(models / "nowhere"), kv_bytes=1))
    with pytest.raises(InputError, match="kv_bytes is 10"):
        await group.load(ModelSpec(name="x", path=str(models / "llama"), kv_bytes=10))
    with pytest.raises(InputError, match="precision 'fp7'"):
        await group.load(ModelSpec(name="x", path=str(models / "llama"), kv_bytes=1_000_000, precision="fp7"))
    with pytest.raises(InputError, match="step_costs of 2 stages, 0 given"):
        await group.load(ModelSpec(name="x", path=str(models / "llama"), kv_bytes=1_000_000, tpot_s=0.1))
    with pytest.raises(InputError, match="tpot_s is 0"):
        ModelSpec(name="x", path="", tpot_s=0.0)
    for prompt, message in (([], "no tokens"), ([99], "from 0 to 98"), ([1] * 500, "at most")):
        with pytest.raises(RequestFailed, match=message):
            await collect(group, "llama", "bad", prompt)
    with pytest.raises(RequestFailed, match="temperature"):
        await collect(group, "llama", "bad", [1], SamplingParams(max_tokens=1, temperature=9.0))
    with pytest.raises(RequestFailed, match="one pass"):
        await collect(group, "bert", "bad", [1])


async def check_sampling(group):
    """Several answers, seeded: the same alone as beside others, and each with its log-probabilities."""
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5, n=3, logprobs=2)
    alone = await collect(group, "llama", "n", [1, 2, 3], params)
    crowd = [collect(group, "llama", f"crowd{index}", [index, 7], ENDLESS) for index in range(3)]
    beside, *_ = await asyncio.gather(collect(group, "llama", "n", [1, 2, 3], params), *crowd)

    def answers(outputs):
        return [[output.token for output in outputs if output.index == index] for index in range(3)]

    assert answers(alone) == answers(beside)
    assert len({tuple(tokens) for tokens in answers(alone)}) == 3
    assert all(output.logprobs.logprob <= 0 and len(output.logprobs.top_ids) == 2 for output in alone)


async def check_cancel(group):
    stream = group.generate("c", "llama", [1, 2, 3], ENDLESS)
    async for _ in stream:
        break
    await stream.aclose()
    await collect(group, "llama", "after", [1])
    deadline = time.monotonic() + 5
    while group.states["llama"].running and time.monotonic() < deadline:
        await collect(group, "llama", "after", [1])
    assert group.states["llama"].blocks_used == 0


async def check_drain(group):
    """Open requests end first; one whose model is unloaded meanwhile does not hold the drain up."""
    open_one = asyncio.create_task(collect(group, "llama", "open", [5, 6], ENDLESS))
    lost = asyncio.create_task(collect(group, "mixtral", "lost", [5, 6], ENDLESS))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(asyncio.gather(group.drain(), group.unload("mixtral")), 30)
    assert (await open_one)[-1].finish == "length"
    await asyncio.wait([lost], timeout=5)
    assert lost.exception() is None or "unloaded" in str(lost.exception())
    with pytest.raises(RequestFailed, match="takes no more"):
        await collect(group, "llama", "late", [1])


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_two_devices_with_gloo(models, tp, pp):
    async def scenario():
        async with running(tp=tp, pp=pp, backend="gloo") as group:
            await group.load(spec(models, "llama"))
            return await texts(group, "llama")

    check_texts("llama", run(asyncio.wait_for(scenario(), 120)))


def test_two_devices_over_tcp(models):
    """Links and tensors over TCP, with a secret; who does not know it gets nowhere."""
    tcp = Tcp(host="127.0.0.1", secret="a secret of enough bytes")

    async def scenario():
        async with running(pp=2, backend="gloo", tcp=tcp) as group:
            control = group._places.control
            assert control.startswith("tcp:127.0.0.1:")
            with pytest.raises(LinkError, match="secret"):
                await connect(control, Report, ignore, ignore, secret=b"another secret of enough bytes")
            await group.load(spec(models, "llama"))
            return await texts(group, "llama")

    check_texts("llama", run(asyncio.wait_for(scenario(), 120)))
    assert "secret of" not in repr(GroupSpec(name="g", devices=("cpu:0",), tcp=tcp))
    with pytest.raises(InputError, match="bytes; give at least"):
        Tcp(host="127.0.0.1", secret="short")
    with pytest.raises(InputError, match="three from 1"):
        Tcp(host="127.0.0.1", secret=tcp.secret, ports=(0, 1, 2))
    with pytest.raises(InputError, match="give its ports"):
        make_places(Path(), Tcp(host="192.0.2.1", secret=tcp.secret), "gloo")


def ignore(link, what):
    pass


def test_loading_a_model_does_not_stop_the_others(tmp_path):
    """A model of 220 MB is read while another generates; worst gaps between its tokens stay far below the reading."""
    # Heads as small as those of the other tests' models: what is compiled depends on their size.
    make_random(tmp_path / "small", hidden=512, heads=64, ffn=1408, layers=4, vocabulary=512)
    make_random(tmp_path / "large", hidden=1024, heads=128, ffn=2816, layers=4, vocabulary=512)
    times = []

    async def talk(group):
        for number in itertools.count():
            async for _ in group.generate(f"r{number}", "small", [1, 2, 3], ENDLESS):
                times.append(time.perf_counter())  # noqa: PERF401  (now, not when all have come)

    async def scenario():
        async with running(pp=2) as group:
            await group.load(spec(tmp_path, "small"))
            talking = asyncio.create_task(talk(group))
            while len(times) < 100:
                await asyncio.sleep(0.1)
            began = time.perf_counter()
            first, second = await asyncio.gather(
                group.load(spec(tmp_path, "large")), group.load(spec(tmp_path, "large")), return_exceptions=True
            )
            ended = time.perf_counter()
            talking.cancel()
            assert first["blocks"] > 0
            assert "already" in str(second)
            assert len(await collect(group, "large", "new", [1, 2])) == 24
        return began, ended

    began, ended = run(asyncio.wait_for(scenario(), 120))
    gaps = [(later - sooner, later) for sooner, later in itertools.pairwise(times)]
    calm = statistics.median(gap for gap, at in gaps if at < began)
    during = sorted(gap for gap, at in gaps if began < at <= ended)
    assert during[-1] < (ended - began) / 4
    assert during[int(0.95 * len(during))] < 5 * calm


KILLS = [(0, "SIGKILL"), (3, "SIGKILL")]


@pytest.mark.parametrize(("rank", "how"), KILLS)
def test_a_lost_worker_ends_the_group_and_all_its_requests_soon(models, rank, how):
    kill_under_load(models, rank, how)


@pytest.mark.long
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_any_worker_lost_in_any_way(models, rank, how):
    kill_under_load(models, rank, how)


def kill_under_load(models, rank, how):
    async def scenario():
        devices = tuple(f"cpu:{core}" for core in range(4))
        group = await start_group(GroupSpec(name="g", devices=devices, tp=2, pp=2), LocalLauncher())
        await group.load(spec(models, "llama"))
        ended = []

        async def one(index):
            try:
                while True:
                    await collect(group, "llama", f"{index}-{time.monotonic_ns()}", [index, 2, 3], ENDLESS)
            except (RequestFailed, GroupLost) as failure:
                ended.append(time.monotonic())
                return str(failure)

        load = [asyncio.create_task(one(index)) for index in range(8)]
        await asyncio.sleep(1.0)
        assert group.states["llama"].running > 0
        killed = time.monotonic()
        os.kill(group.handles[rank].pid, getattr(signal, how))
        reasons = await asyncio.wait_for(asyncio.gather(*load), 10)
        assert max(ended) - killed < (3.5 if how == "SIGSTOP" else 2.0)
        assert all("g" in reason for reason in reasons)
        with pytest.raises(GroupLost):
            await group.load(spec(models, "bert"))
        for handle in group.handles:
            await asyncio.wait_for(handle.wait(), 2)
        await group.stop()
        assert not any(is_alive(handle.pid) for handle in group.handles)

    run(asyncio.wait_for(scenario(), 100))


def test_a_controller_that_vanishes_takes_its_workers_along(models, tmp_path):
    import subprocess
    import sys

    script = """
import asyncio, sys
from serving.worker.connect import connect
from serving.worker.event_loop import run
from serving.worker.group import GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
async def main():
    group = await start_group(GroupSpec(name="g", devices=("cpu:0", "cpu:1"), pp=2), LocalLauncher())
    print(*(handle.pid for handle in group.handles), flush=True)
    await asyncio.sleep(100)
run(main())
"""
    controller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in controller.stdout.readline().split()]
    assert len(pids) == 2
    controller.kill()
    controller.wait()
    controller.stdout.close()
    deadline = time.monotonic() + 3
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in pids)


def test_a_paced_group_takes_its_multiple_of_the_time(models):
    """Paced workers are real ones slowed down: the same text, and in a step most of the time is waited."""

    async def measure(pace):
        async with running(pace=pace) as group:
            assert group.kind == ("paced" if pace > 1 else "real")
            await group.load(spec(models, "llama"))
            await texts(group, "llama")
            before_s = sum(group.states["llama"].busy_s)
            tokens = await texts(group, "llama")
            return tokens, sum(group.states["llama"].busy_s) - before_s

    real, real_s = run(asyncio.wait_for(measure(1.0), 60))
    paced, paced_s = run(asyncio.wait_for(measure(40.0), 60))
    assert paced == real
    assert paced_s > 8 * real_s, "forty times, or less where the core is found to be slowed down by others"


def test_what_cannot_start_says_why():
    async def scenario():
        with pytest.raises(InputError, match="needs others"):
            GroupSpec(name="g", devices=("cpu:0",), tp=2)
        with pytest.raises(GroupLost, match="g/0"):
            await start_group(GroupSpec(name="g", devices=("cpu:0",)), LocalLauncher(python="/bin/false"), wait_s=10)

    run(asyncio.wait_for(scenario(), 30))
