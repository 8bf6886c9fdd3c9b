"""Anything killed while devices are lent and called back: whether all is well again, and how soon.

python -m benchmarks.chaos_loans [--tiny] [--kills N] [--seed S] [--spare]

A server with two devices lends one of them to two `lm` jobs whenever next to nothing is asked for; bursts call it back.
With --spare there is a third device, which no group has, and one job that grows from it and shrinks to it. In any state
of the loan and of the jobs one is killed with SIGKILL: the server (which is started again, and at times killed again
while it starts), a serving worker, a job's keeper, its coordinator or one of its workers. `wrong`: a device with two
users or with an owner that is not there, a job lost or running twice, a torn checkpoint, steps behind the newest
checkpoint, no answer to requests, anything left when the server has been stopped. `ratio`: the share of kills after
which nothing was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.loan_witness import Witness
from benchmarks.harness.server import Server
from benchmarks.harness.world import World, make_world
from placement.capacity import Rung, usual_requests, with_rungs
from placement.cli.admin import ask_admin
from placement.errors import InputError
from placement.plan import Group, Plan
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from serving.small_models.random import make_random
from training.queue import open_store
from training.queue.processes import find_process, send
from training.queue.record import Process

MODELS = ("chat", "chat-2")
SERVING = 2
"""Devices of groups."""
PACE = 2.0
"""Of workers that share two cores with a third device."""
LENT = "g1"
SIZES: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 8, "ffn": 128, "vocabulary": 512}
CACHE_BYTES = 4 << 20
TARGETS = ("server", "serving", "keeper", "coordinator", "worker")
MOMENTS = ("any", "home", "draining", "lent", "returning", "starting")
"""What the kills are aimed at: states of the loan, or a job that starts."""
MOMENT_S, TINY_MOMENT_S = 6.0, 1.0
"""What is waited for one of them at most."""
VICTIMS_S = 0.3
"""Between two looks at who could be killed."""
AGAIN, START_S = 0.3, 6.0
"""The chance that a server is killed once more within so many seconds from its start."""
WELL_S = 120.0
"""A job whose processes were lost again and again waits for up to 60 s of it before it starts."""
LONG_TOKENS, SHORT_TOKENS = 96, 4
STEP_S = 0.05
BURST, BURST_EVERY_S = 24, 20.0


@dataclass
class Clients:
    """A trickle of requests, and bursts; `answers` counts their ends."""

    seed: int
    url: str = ""
    answers: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def trickle(self) -> None:
        rng = random.Random(self.seed)
        with ThreadPoolExecutor(8) as pool:
            while not self.over.wait(rng.uniform(0.3, 0.9)):
                pool.submit(self.ask, LONG_TOKENS if rng.random() < 0.2 else SHORT_TOKENS)

    def burst(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self.ask, [SHORT_TOKENS] * BURST))

    def ask(self, tokens: int = SHORT_TOKENS, model: str | None = None) -> bool:
        body = {"model": model or random.choice(MODELS), "prompt": "so it is", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                end = str(answer.status) if json.load(answer)["choices"] else "empty"
        except urllib.error.HTTPError as error:
            end = str(error.code)
        except (OSError, ValueError):
            end = "cut off"
        self.answers[end] += 1
        return end == "200"


@dataclass(frozen=True)
class Kill:
    target: str
    state: str
    well_s: float | None
    wrong: tuple[str, ...]


class Chaos:
    def __init__(self, folder: Path, seed: int, moment_s: float, spare: int) -> None:
        self._jobs = ("first",) if spare else ("first", "second")
        self._devices = SERVING + spare
        self._rng, self._moment_s = random.Random(seed), moment_s
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        os.environ["TMPDIR"] = str(self._temporary)  # all that the server starts has it, and is known by it
        self._world, self._plan = _make_world(folder, self._devices)
        self._config = self._world.write("served")
        self.store = open_store(f"sqlite:///{folder}/queue.db")
        self.witness = Witness(self.store, folder / "queue-jobs", self._temporary, self._jobs)
        self.clients = Clients(seed)
        self.kills: list[Kill] = []
        self._starts = self.killed_again = 0
        self._server = self._start()

    def run(self, kills: int) -> list[str]:
        """What was wrong besides the kills."""
        for job in self._jobs:
            self._submit(job)
        beside = [threading.Thread(target=work, daemon=True) for work in (self.clients.trickle, self.witness.run)]
        for thread in beside:
            thread.start()
        wrong = []
        try:
            if reason := self._until_well(time.time()):
                raise SystemExit(f"benchmarks.chaos_loans: it does not begin: {reason}")
            for turn in range(kills):
                self.kills.append(self._kill(TARGETS[3 * turn % len(TARGETS)], self._rng.choice(MOMENTS)))
                note(f"{len(self.kills)}: {self.kills[-1]}")
        finally:
            self.clients.over.set()
            self.witness.end()
            for thread in beside:
                thread.join()
            self.witness.read_journal()
            wrong += self._stop()
        return wrong + self.witness.wrong + self.witness.computed_for_two(LENT, self._devices - SERVING)

    def _start(self) -> Server:
        self._starts += 1
        server = Server(self._config, f"--plan={self._plan}")
        server.log = self._config.parent / f"server-{self._starts}.log"
        self._starting = server
        server.__enter__()
        self.clients.url = server.url
        self.witness.watch(server)
        return server

    def _submit(self, job: str) -> None:
        lm = {"model": self._world.document["models"][0]["path"], "data": str(self._world.folder / "tokens.npy")}
        lm |= {"steps": 10**6, "batch": 4, "context": 16, "fresh": True, "pace": STEP_S, "checkpoint": 2}
        body = {"id": job, "type": "lm", "gpus": 1, "min_gpus": 1, "max_gpus": SERVING, "duration": 10**6, "lm": lm}
        ask_admin(self._server.url, "/v1/jobs", json.dumps(body).encode(), "POST")

    def _kill(self, target: str, moment: str) -> Kill:
        state, victim = self._await(target, moment)
        newest = {job: self.witness.newest_checkpoint(job) for job in self._jobs}
        since, began = time.time(), time.monotonic()
        if target == "server":
            with suppress(InputError):
                self.witness.read_journal()
            self.witness.watch(None)
            self._server.stop(signal.SIGKILL)
            self._start_at_last()
        else:
            send(victim, signal.SIGKILL)
        reason = self._until_well(time.time())
        well_s = None if reason else time.monotonic() - began
        wrong = [*([f"not well after {WELL_S:g} s: {reason}"] if reason else []), *self.witness.lost()]
        return Kill(target, state, well_s, (*wrong, *self.witness.gone_back(since, newest)))

    def _start_at_last(self) -> None:
        """At times it is killed before it is there."""
        if self._rng.random() < AGAIN:
            killer = threading.Timer(self._rng.uniform(0.1, START_S), self._kill_starting)
            killer.start()
            try:
                self._server = self._start()
                return
            except (RuntimeError, InputError):
                self.killed_again += 1
            finally:
                killer.cancel()
                killer.join()
        self._server = self._start()

    def _kill_starting(self) -> None:
        if not self._starting.url:
            self._starting.process.kill()

    def _await(self, target: str, moment: str) -> tuple[str, Process]:
        """Until the moment has come and somebody is there to be killed, or it does not come; the state then."""
        threading.Thread(target=self.clients.burst, daemon=True).start()
        patience_s = self._rng.uniform(0, self._moment_s) if moment == "any" else self._moment_s
        end, looked_at = time.monotonic() + patience_s, 0.0
        while True:
            if time.monotonic() > looked_at + VICTIMS_S:
                victims, looked_at = self._victims(target), time.monotonic()
            state = self._glance()
            if victims and (moment in state.split() or time.monotonic() > end):
                time.sleep(self._rng.uniform(0, 0.02))
                return state, self._rng.choice(victims)
            time.sleep(0.002)

    def _glance(self) -> str:
        """A word for the loan, one for each job."""
        loans = ask_admin(self._server.url, "/admin/explain/loans")["loans"]
        return " ".join(
            [*([one["state"] for one in loans] or ["home"]), *(self.store.get(job).state for job in self._jobs)]
        )

    def _victims(self, target: str) -> list[Process]:
        if target == "server":
            found = [find_process(self._server.process.pid)]
        elif target == "serving":
            found = [find_process(pid) for group in self._server.status()["groups"] for pid in group["pids"]]
        else:
            found = [one for job in self._jobs for one in self.witness.processes(job, target)]
        return [one for one in found if one is not None]

    def _until_well(self, since: float) -> str:
        """What is still missing when it takes too long. Bursts come meanwhile: one that is due is waited for, and
        nothing is lent before."""
        began = burst_at = time.monotonic()
        while reason := self.witness.missing(since) or self._unanswered():
            if time.monotonic() > began + WELL_S:
                return reason
            if time.monotonic() > burst_at + BURST_EVERY_S:
                burst_at = time.monotonic()
                self.clients.burst()
            time.sleep(0.1)
        return ""

    def _unanswered(self) -> str:
        return next((f"{model} does not answer" for model in MODELS if not self.clients.ask(model=model)), "")

    def _stop(self) -> list[str]:
        wrong = []
        code = self._server.stop()
        if code:
            wrong.append(f"the server's exit code was {code}: {self._server.tail()}")
        time.sleep(0.5)
        wrong += [f"left: {what}" for what in self.witness.left()]
        wrong += [
            f"stopped, but {job} is {state}" for job in self._jobs if (state := self.store.get(job).state) == "running"
        ]
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spare", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), options.seed, TINY_MOMENT_S if options.tiny else MOMENT_S, int(options.spare))
        wrong = chaos.run(2 if options.tiny else options.kills)
        emit(_report(chaos, wrong))
        chaos.store.close()


def _report(chaos: Chaos, wrong: list[str]) -> dict[str, Any]:
    recovery: dict[str, list[float]] = defaultdict(list)
    for kill in chaos.kills:
        if kill.well_s is not None:
            recovery[kill.target].append(kill.well_s)
    return {
        "benchmark": "chaos_loans",
        "kills": dict(Counter(kill.target for kill in chaos.kills)),
        "states": dict(Counter(kill.state for kill in chaos.kills)),
        "wrong": [*wrong, *(f"{kill.target} ({kill.state}): {what}" for kill in chaos.kills for what in kill.wrong)],
        "well_again_s": {
            target: {"median": round(statistics.median(times), 2), "most": round(max(times), 2)}
            for target, times in recovery.items()
        },
        "killed_again_while_starting": chaos.killed_again,
        "loans": chaos.witness.loans(LENT),
        "home_s": round(chaos.witness.home_s(LENT), 1),
        "steps": sum(1 for _ in chaos.witness.steps()),
        "answers": dict(chaos.clients.answers),
        "ratio": round(sum(not kill.wrong for kill in chaos.kills) / len(chaos.kills), 4),
    }


def _make_world(folder: Path, devices: int) -> tuple[World, Path]:
    """The configuration, and a plan by which the second group can be lent while a few requests come a second."""
    shape = ShapeProfile(1, 1, (Bytes(2**20),), generation=Generation((StepCost(fixed=0.02),), (512.0,)))
    models = []
    for seed, name in enumerate(MODELS):
        make_random(folder / name, **SIZES, seed=seed)
        traffic = {"rate": 2, "cv": 1, "prompt_tokens": 8, "output_tokens": SHORT_TOKENS}
        slo = {"ttft": "20s", "tpot": "10s"}
        models.append({"name": name, "path": str(folder / name), "slo": slo, "traffic": traffic})
    np.save(folder / "tokens.npy", np.random.default_rng(0).zipf(1.3, 100_000) % SIZES["vocabulary"])
    training = {"store": f"sqlite:///{folder}/queue.db", "data": [str(folder)], "loans": {"minimum": "1s"}}
    profiles = {name: Profile((shape,)) for name in MODELS}
    workers = {"kind": "paced", "pace": PACE} if devices > SERVING else {"kind": "real"}
    world = make_world(folder, models, devices, profiles=profiles, training=training, workers=workers)
    work_s = max(one.work_s for one in usual_requests(world.problem()).values())
    groups = [Group((f"local/{n}",), 1, 1, MODELS, dict.fromkeys(MODELS, CACHE_BYTES)) for n in range(SERVING)]
    few = 12 * work_s  # a second
    plan = with_rungs(Plan(tuple(groups), ((1,),)), (Rung((), 1000 * few), Rung((1,), few)))
    return world, world.write_plan("served", plan)


if __name__ == "__main__":
    main()
