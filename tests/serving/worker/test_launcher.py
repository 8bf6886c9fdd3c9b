"""Workers as real processes: how they start, what is heard of them, and that none stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.worker.device import THREAD_VARIABLES, device_environment, parse_device
from serving.worker.launcher import Exit, WorkerSpec
from serving.worker.lifeline import PARENT_VARIABLE
from serving.worker.line_reader import KEPT_LINES, MAX_LINE_BYTES, LineReader
from serving.worker.local_launcher import LocalLauncher, make_environment
from tests.serving.worker.words import ROOT, fds, until

UNHURRIED = settings(deadline=None)  # machines are busy at times


def children_now():
    """Of this process; other tests may have left some (multiprocessing's helpers live on)."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    """Runs a coroutine on either loop, within 30 s; it may leave no file, thread or child."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def go(main):
        factory().close()  # what libuv opens once a process
        before, threads, children = fds(), threading.active_count(), children_now()
        # uvloop hangs when its complaint about a transport that a failed test left open is made an error
        with warnings.catch_warnings(), asyncio.Runner(loop_factory=factory) as runner:
            warnings.simplefilter("ignore", ResourceWarning)
            result = runner.run(asyncio.wait_for(main, 30))
        wait_for(lambda: threading.active_count() == threads, 5)
        assert fds() <= before
        assert children_now() <= children
        return result

    return go


def spec(*do, device="cpu:0", module="tests.serving.worker.child", **more):
    environment = {"PYTHONPATH": str(ROOT)} | more.pop("environment", {})
    return WorkerSpec(name="w0", device=device, module=module, document={"do": do, **more}, environment=environment)


class Heard(list):
    """Lines of workers as they come."""

    def __call__(self, name, line):
        assert name == "w0"
        self.append(line)

    def find(self, start):
        return next((line.removeprefix(start).strip() for line in self if line.startswith(start)), None)


def is_alive(pid):
    """Dead is gone or a zombie that somebody else must reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_tells_its_code_and_its_last_lines(run):
    async def main():
        heard = Heard()
        handle = await LocalLauncher(heard).start(spec(("say", "hello"), ("print", "on stdout"), ("exit", 3)))
        assert handle.name == "w0"
        assert is_alive(handle.pid)
        ended = await handle.wait()
        assert ended == Exit(name="w0", code=3, signal=None, lines=("hello", "on stdout"))
        assert ended.reason == "w0: exit code 3: on stdout"
        assert heard == ["hello", "on stdout"]
        assert await handle.wait() == ended
        handle.kill()  # too late, and harmless
        assert await handle.terminate(1) == ended

    run(main())


def test_a_signal_and_a_traceback_are_told(run):
    async def main():
        launcher = LocalLauncher(Heard())
        fell = await (await launcher.start(spec(("fall", signal.SIGUSR1)))).wait()
        assert (fell.code, fell.signal) == (None, signal.SIGUSR1)
        assert fell.reason == "w0: killed by SIGUSR1"
        missing = await (await launcher.start(spec(module="no.such.module"))).wait()
        assert missing.code == 1
        assert "No module named 'no'" in missing.reason
        crashed = await (await launcher.start(spec(("fall", signal.SIGSEGV)))).wait()
        assert crashed.signal == signal.SIGSEGV
        assert any("Segmentation fault" in line for line in crashed.lines)

    run(main())


def test_only_the_last_lines_are_kept_but_all_are_passed_on(run):
    async def main():
        heard = Heard()
        ended = await (await LocalLauncher(heard).start(spec(("count", 500)))).wait()
        assert heard == [str(number) for number in range(500)]
        assert ended.lines == tuple(heard[-KEPT_LINES:])

    run(main())


def test_the_document_comes_by_stdin_alone_and_the_environment_is_small(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for workers")
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    secret = "open sesame" * 20_000  # more than a pipe holds

    async def main():
        heard = Heard()
        order = spec(("tell", None), ("sleep", 60), secret=secret, environment={"EXTRA": "yes"})
        assert "sesame" not in repr(order)
        handle = await LocalLauncher(heard).start(order)
        await until(lambda: heard)
        for file in ("cmdline", "environ"):
            assert b"sesame" not in Path(f"/proc/{handle.pid}/{file}").read_bytes()
        told = json.loads(heard[0])
        assert told["size"] > len(secret)
        assert told["rest"] == ""
        assert told["name"] == "__main__"
        assert len(told["arguments"]) == 1
        assert told["session"] == handle.pid
        assert not {"", str(tmp_path)} & set(told["path"])
        environment = told["environment"]
        assert "AWS_SECRET_ACCESS_KEY" not in environment
        assert PARENT_VARIABLE not in environment
        assert environment["EXTRA"] == "yes"
        assert environment["PENSTOCK_DEBUG"] == "1"
        assert all(environment[name] == "1" for name in THREAD_VARIABLES)
        handle.kill()
        assert (await handle.wait()).signal == signal.SIGKILL

    run(main())


def test_terminate_asks_first_and_kills_who_does_not_listen(run):
    async def main():
        heard = Heard()
        launcher = LocalLauncher(heard)
        willing = await launcher.start(spec(("say", "up"), ("sleep", 60)))
        await until(lambda: heard)
        begin = time.perf_counter()
        assert (await willing.terminate(10)).signal == signal.SIGTERM
        assert time.perf_counter() - begin < 2
        stubborn = await launcher.start(spec(("ignore", None), ("say", "deaf"), ("sleep", 60)))
        await until(lambda: "deaf" in heard)
        begin = time.perf_counter()
        ended = await stubborn.terminate(0.4)
        assert 0.4 <= time.perf_counter() - begin < 2
        assert ended.signal == signal.SIGKILL
        assert ended.reason == "w0: killed by SIGKILL: deaf"
        stopped = await launcher.start(spec(("say", "frozen"), ("sleep", 60)))
        await until(lambda: "frozen" in heard)
        os.kill(stopped.pid, signal.SIGSTOP)
        assert (await stopped.terminate(0.1)).signal in (signal.SIGTERM, signal.SIGKILL)  # both wait for it

    run(main())


def test_kill_takes_what_the_worker_started(run):
    async def main():
        heard = Heard()
        handle = await LocalLauncher(heard).start(spec(("bear", None), ("sleep", 60)))
        await until(lambda: heard.find("bore"))
        handle.kill()
        await handle.wait()
        await until(lambda: not is_alive(int(heard.find("bore"))), 2)

    run(main())


def test_what_a_worker_leaves_behind_neither_stays_nor_delays(run):
    async def main():
        heard = Heard()
        handle = await LocalLauncher(heard).start(spec(("bear", None)))
        begin = time.perf_counter()
        ended = await handle.wait()
        assert ended.code == 0
        assert time.perf_counter() - begin < 5
        await until(lambda: not is_alive(int(heard.find("bore"))), 2)

    run(main())


def test_what_cannot_be_started_says_so(run):
    async def main():
        with pytest.raises(InputError, match="w0: cannot start /nowhere/python: no such file"):
            await LocalLauncher(python="/nowhere/python").start(spec())
        with pytest.raises(InputError, match=r"w0: cannot start .*: embedded null byte"):
            await LocalLauncher().start(spec(environment={"A": "null\0byte"}))

    run(main())


def test_a_cancelled_start_leaves_no_process(run):
    async def main():
        for delay in (0, 0, 0.001, 0.01):
            starting = asyncio.ensure_future(LocalLauncher(Heard()).start(spec(("sleep", 60))))
            await asyncio.sleep(delay)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await starting).kill()
        await until(lambda: "worker w0" not in {thread.name for thread in threading.enumerate()})
        await asyncio.sleep(0.1)

    run(main())


def test_a_start_cancelled_while_its_pipe_is_connected_leaves_no_process(run, monkeypatch):
    async def main():
        starting = asyncio.ensure_future(LocalLauncher(Heard()).start(spec(("sleep", 60))))
        monkeypatch.setattr(LineReader, "connection_made", lambda *_: starting.cancel())
        with pytest.raises(asyncio.CancelledError):
            await starting
        await until(lambda: "worker w0" not in {thread.name for thread in threading.enumerate()})
        await asyncio.sleep(0.1)

    run(main())


def test_many_workers_at_once(run):
    async def main():
        launcher = LocalLauncher(Heard())
        handles = await asyncio.gather(*(launcher.start(spec(("exit", code))) for code in range(4)))
        ends = await asyncio.gather(*(handle.wait() for handle in handles))
        assert [end.code for end in ends] == [0, 1, 2, 3]

    run(main())


PARENT = """if True:
    import asyncio, sys, threading, time
    from serving.worker.event_loop import run
    from serving.worker.launcher import WorkerSpec
    from serving.worker.local_launcher import LocalLauncher
    async def main():
        spec = WorkerSpec(name="w", device="cpu:0", module="tests.serving.worker.child",
                          document={"do": [["ignore", None], ["say", "up"], ["sleep", 60]]},
                          environment={"PYTHONPATH": sys.argv[1]})
        up = asyncio.Event()
        handle = await LocalLauncher(lambda *_: up.set()).start(spec)
        await up.wait()
        print(handle.pid, flush=True)
        if sys.argv[2] == "stay":
            await asyncio.sleep(60)
    if sys.argv[2] == "stay":
        run(main())
    else:
        thread = threading.Thread(target=lambda: run(main()))
        thread.start()
        thread.join()
        time.sleep(60)
"""


@contextlib.contextmanager
def parent(how):
    """A process with a worker; gives both pids."""
    command = [sys.executable, "-c", PARENT, str(ROOT), how]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=10)


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_no_worker_outlives_a_killed_parent():
    with parent("stay") as (process, worker):
        assert is_alive(worker)
        process.kill()
        wait_for(lambda: not is_alive(worker), 1)


def test_a_worker_outlives_the_thread_whose_loop_started_it_but_not_the_process():
    with parent("leave") as (process, worker):
        time.sleep(0.5)
        assert is_alive(worker)
        process.kill()
        wait_for(lambda: not is_alive(worker), 1)


def test_a_worker_whose_parent_is_already_gone_does_not_begin():
    result = subprocess.run(
        [sys.executable, "-P", "-m", "serving.worker.lifeline", "tests.serving.worker.child"],
        env={PARENT_VARIABLE: "1", "PYTHONPATH": str(ROOT)},
        input=b'{"do": [["say", "alive"]]}',
        capture_output=True,
        timeout=20,
    )
    assert result.returncode == -signal.SIGKILL
    assert result.stderr == b""


@pytest.mark.parametrize(("given_bytes", "message"), [(b"", "stdin: no JSON document"), (b"[1]", "Expected `object`")])
def test_a_worker_without_a_document_says_so(given_bytes, message):
    result = subprocess.run(
        [sys.executable, "-m", "tests.serving.worker.child"],
        cwd=ROOT,
        input=given_bytes,
        capture_output=True,
        timeout=20,
    )
    assert result.returncode == 1
    assert message in result.stderr.decode().splitlines()[-1]


def test_a_worker_is_pinned_to_its_core_and_wraps(run):
    cores = sorted(os.sched_getaffinity(0))

    async def main():
        for number in range(3):
            heard = Heard()
            await (await LocalLauncher(heard).start(spec(("pin", [f"cpu:{number}"])))).wait()
            assert heard == [str([cores[number % len(cores)]])]
        heard = Heard()
        await (await LocalLauncher(heard).start(spec(("pin", ["cuda:1"])))).wait()
        assert heard == ["[None]"]

    run(main())


def test_a_worker_of_a_gpu_sees_that_gpu_alone():
    assert device_environment("cuda:1", {})["CUDA_VISIBLE_DEVICES"] == "1"
    assert device_environment("cuda:1", {"CUDA_VISIBLE_DEVICES": "4, GPU-7"})["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert device_environment("cpu:1", {"CUDA_VISIBLE_DEVICES": "4"})["CUDA_VISIBLE_DEVICES"] == ""
    with pytest.raises(InputError, match="'cuda:2': CUDA_VISIBLE_DEVICES='4,5' shows 2"):
        device_environment("cuda:2", {"CUDA_VISIBLE_DEVICES": "4,5"})
    made = make_environment(spec(device="cuda:0"), {"OMP_NUM_THREADS": "9", "NCCL_DEBUG": "INFO", "KEY": "k"})
    assert made["NCCL_DEBUG"] == "INFO"
    assert not {"OMP_NUM_THREADS", "KEY"} & made.keys()
    both = WorkerSpec(name="w0", device="cuda:1", devices=("cuda:1", "cuda:0"), module="m")
    assert make_environment(both, {"CUDA_VISIBLE_DEVICES": "4,6"})["CUDA_VISIBLE_DEVICES"] == "6,4"


def test_keys_and_traces_are_not_for_workers():
    ours = {"PENSTOCK_DEBUG": "1", "PENSTOCK_JOB_DIR": "/jobs/a"}
    keys = {"PENSTOCK_ADMIN_KEY": "key-of-the-admin", "PENSTOCK_API_KEYS": "key-of-anna anna", "PENSTOCK_API_KEY": "k"}
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    made = make_environment(spec(device="cpu:0"), ours | keys | traces)
    assert ours.items() <= made.items()
    assert not (keys | traces).keys() & made.keys()


@pytest.mark.parametrize(
    "text", ["", "cpu", "gpu:0", "cuda:-1", "cuda:x", "cuda:99999", " cpu:0", "cpu:0\n", "cpu:\u0663"]
)
def test_what_is_no_device_is_refused(text):
    with pytest.raises(InputError, match="give cpu:N or cuda:N"):
        parse_device(text)
    with pytest.raises((InputError, msgspec.ValidationError)):
        WorkerSpec(name="w", device=text, module="m")


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a\nb"}, {"module": "-c"}, {"module": "a..b"}])
def test_specs_that_cannot_work_are_refused(wrong):
    with pytest.raises(InputError):
        WorkerSpec(**{"name": "w", "device": "cpu:0", "module": "m"} | wrong)


@UNHURRIED
@given(st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"\r")), max_size=80), st.integers(1, 50))
def test_lines_are_the_same_however_they_are_cut(lines, size):
    async def main():
        heard = []
        reader = LineReader(heard.append)
        stream = b"".join(line + b"\n" for line in lines) + b"the last"
        for start in range(0, len(stream), size):
            reader.data_received(stream[start : start + size])
        reader.connection_lost(None)
        assert heard == [line.decode(errors="replace").rstrip("\r") for line in [*lines, b"the last"]]
        assert reader.lines == tuple(heard[-KEPT_LINES:])
        assert reader.ended.done()

    asyncio.run(main())


@UNHURRIED
@given(st.lists(st.integers(1, 3 * MAX_LINE_BYTES), max_size=5))
def test_a_line_without_end_is_passed_on_in_pieces(sizes):
    async def main():
        heard = []
        reader = LineReader(heard.append)
        for size in sizes:
            reader.data_received(b"x" * size)
            assert len(reader._rest) < MAX_LINE_BYTES
        reader.connection_lost(None)
        assert "".join(heard) == "x" * sum(sizes)
        assert all(len(line) <= MAX_LINE_BYTES for line in heard)

    asyncio.run(main())
