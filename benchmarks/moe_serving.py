"""Latency of a model with experts on four expert-parallel paced devices: experts in order, EPLB, ours.

    python -m benchmarks.moe_serving [--tiny] [--expert-width N | --model DIR]
        [--rounds N] [--seconds S] [--load L] [--cv CV]

The small MoE model of `penstock models make`, really trained and really skewed, on one group of four workers that are
real and paced (each takes `pace` times its own CPU time, so that four fit on two cores). Prompts are text it was not
trained on, of two kinds, topics and the reference: every prompt is of one, and asked in stretches of one and the other.
The first half of each is the history that EPLB and ours are placed from, the second half is asked, in bursts (`cv`), at
a rate that static placement can just serve (`load` of its capacity, found before). Policies take turns with the same
requests at the same times; what arrives in the first third of a turn fills the queues and is not judged. `static` and
`penstock` are the same processes, whose experts are moved live between turns; `eplb` is a second group that splits
tokens evenly over replicas. Both policies decide again after each turn, from all they have served (ours: moe.decision;
EPLB's moves are free). Latency is from arrival to the answer's token. `ratio`: EPLB's p95 over ours. `busy_ms`: what a
request takes of the group, queues apart; fewer requests a step make it more, so that it says little of the policies.
--expert-width makes the model by the same recipe with wider experts. Latency on more devices than this is emulated,
with the routes of a real model: `benchmarks.moe`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from benchmarks.cases import emit, note
from loadgen.arrivals import gamma_arrivals
from moe.arrays import Floats
from moe.decision import Terms, decide
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.popularity import Recent
from moe.replication import Eplb, Penstock, Static, Task
from moe.split import Splitter, balancedness, even_levels
from placement.cache import cache_folder
from serving.models import read_config
from serving.sampling import SamplingParams
from serving.small_models.documents import split
from serving.small_models.make import make_models
from serving.small_models.material import token_stream
from serving.small_models.names import Name
from serving.small_models.random import make_random
from serving.small_models.settings import SETTINGS
from serving.small_models.text import read_corpus
from serving.worker.event_loop import run
from serving.worker.group import Group, GroupSpec, start_group
from serving.worker.launcher import WorkerSpec
from serving.worker.local_launcher import LocalHandle, LocalLauncher
from serving.worker.messages import ModelSpec

ROOT = Path(__file__).parents[1]
MODEL: Name = "moe-chat"
POLICIES = ("static", "eplb", "penstock")
TINY: dict[str, Any] = {"hidden": 64, "heads": 8, "ffn": 48, "layers": 2, "vocabulary": 512, "experts": 16}
OUTPUT_TOKENS = 1
"""One pass through all experts, as inference is in the paper."""
STRETCH_S = 10.0
"""Of one kind of text after another."""
FILLING = 1 / 3
"""Of a turn, while queues are not yet what they will be."""
FEWEST = 20
"""Requests to be expected of a turn, however slow the machine is."""
LOOKS = 3
"""At what a group can serve."""
SAMPLED = 24
"""Prompts whose own choices say how even a step is."""
CACHE_BYTES = 16 * 2**20
GOALS = {"static_over_ours": 1.6, "eplb_over_ours": 1.1}


@dataclass(frozen=True)
class Setting:
    devices: int
    slots: int
    """Experts of a layer on all devices together."""
    pace: float
    rounds: int
    seconds: float
    """Of each turn."""
    load: float
    """Of what static placement can serve."""
    cv: float
    """Of the times between requests."""
    prompt_tokens: int
    step_tokens: int
    """Of all prompts of a step."""
    history: int
    """Prompts."""


FULL = Setting(
    devices=4,
    slots=20,
    pace=25.0,
    rounds=15,
    seconds=12.0,
    load=0.9,
    cv=3.0,
    prompt_tokens=120,
    step_tokens=2048,
    history=256,
)
SMALL = Setting(
    devices=2, slots=18, pace=4.0, rounds=1, seconds=1.0, load=0.5, cv=1.0, prompt_tokens=64, step_tokens=512, history=8
)


class EvenLauncher(LocalLauncher):
    """Of workers that split evenly."""

    async def start(self, spec: WorkerSpec) -> LocalHandle:
        environment = spec.environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        return await super().start(
            msgspec.structs.replace(spec, module="benchmarks.harness.even_worker", environment=environment)
        )


@dataclass
class Turns:
    """What was measured of one policy."""

    latency_s: list[Floats] = field(default_factory=list)
    """Of each turn's requests."""
    busy_s: list[float] = field(default_factory=list)
    """That a request took of the group, of each turn."""
    balance: float = 0.0
    """Of single prompts, as the policy splits them."""

    def figures(self) -> dict[str, Any]:
        every = np.concatenate(self.latency_s)
        quantiles = zip(("p50", "p95", "p99"), np.quantile(every, (0.5, 0.95, 0.99)), strict=True)
        return {
            **{f"{name}_ms": round(1e3 * float(value), 2) for name, value in quantiles},
            "mean_ms": round(1e3 * float(every.mean()), 2),
            "busy_ms": round(1e3 * float(np.mean(self.busy_s)), 2),
            "balancedness": round(self.balance, 4),
        }

    @property
    def p95_s(self) -> float:
        return float(np.quantile(np.concatenate(self.latency_s), 0.95))


class Experiment:
    """All turns; `texts` are what prompts are cut from, in tokens, one of each kind."""

    def __init__(self, setting: Setting, path: Path, texts: list[list[int]]) -> None:
        self._setting, self._path = setting, path
        self._seen = [text[: len(text) // 2] for text in texts]
        self._asked = [text[len(text) // 2 :] for text in texts]
        self._sizes = read_config(path).sizes
        self._pool = Pool.even(setting.devices, setting.slots)
        self._recent = Recent(int(np.count_nonzero(self._sizes.has_experts)), self._sizes.experts)
        self._terms = Terms(4 * self._sizes.ffn_parameters(self._sizes.expert_ffn))
        self._number = 0
        """Of requests so far."""

    async def run(self) -> dict[str, Any]:
        static = Static().place(Task(np.ones_like(self._recent.load()), self._pool))
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(self._group("ours", LocalLauncher(), static))
            even = await stack.enter_async_context(self._group("eplb", EvenLauncher(), static))
            await self._learn(ours)
            load, history = self._recent.load(), self._recent.history()
            held = {
                "static": static,
                "eplb": Eplb().place(Task(load, self._pool)),
                "penstock": Penstock().place(Task(load, self._pool, history)),
            }
            await even.place_experts(MODEL, held["eplb"].lists())
            capacity = {"static": await self._capacity(ours), "eplb": await self._capacity(even)}
            await ours.place_experts(MODEL, held["penstock"].lists())
            capacity["penstock"] = await self._capacity(ours)
            note(f"requests/s at most: {capacity}")
            turns = {policy: Turns() for policy in POLICIES}
            moved = 0
            for number in range(self._setting.rounds):
                for policy in POLICIES[number % 3 :] + POLICIES[: number % 3]:
                    group = even if policy == "eplb" else ours
                    await group.place_experts(MODEL, held[policy].lists())
                    await self._turn(group, number, self._setting.load * capacity["static"], turns[policy])
                    note(f"round {number}, {policy}: {turns[policy].figures()}")
                    if policy == "penstock":
                        task = Task(self._recent.load(), self._pool, self._recent.history(), held[policy])
                        decision = decide(task, self._terms)
                        held[policy], moved = decision.placement, moved + len(decision.copies)
                        held["eplb"] = Eplb().place(Task(self._recent.load(), self._pool))
            samples = await self._samples(ours)
            for policy in POLICIES:
                turns[policy].balance = self._balance(policy, held[policy], samples)
        return self._report(turns, capacity, moved)

    @asynccontextmanager
    async def _group(self, name: str, launcher: LocalLauncher, places: ExpertPlacement) -> AsyncIterator[Group]:
        """Of one stage, each device with whole experts and its share of the rest."""
        devices = self._setting.devices
        cores = tuple(f"cpu:{core}" for core in range(devices))
        group = await start_group(GroupSpec(name=name, devices=cores, tp=devices, pace=self._setting.pace), launcher)
        try:
            spec = ModelSpec(
                name=MODEL,
                path=str(self._path),
                kv_bytes=CACHE_BYTES,
                step_tokens=self._setting.step_tokens,
                experts=places.lists(),
            )
            await group.load(spec)
            yield group
        finally:
            await group.stop()

    async def _learn(self, group: Group) -> None:
        """The history, a prompt a batch."""
        for prompt in self._history():
            await self._answer(group, prompt)
            self._note(await self._counts(group))

    def _history(self) -> list[list[int]]:
        chance = np.random.default_rng(0)
        return [self._prompt(self._seen[number % len(self._seen)], chance) for number in range(self._setting.history)]

    async def _capacity(self, group: Group) -> float:
        """Requests a second, when there is always another one; what runs first is slow, and counts for nothing."""
        prompts, taken_s = self._history(), []
        for _ in range(1 + LOOKS):
            began = time.perf_counter()
            await self._all_at_once(group, prompts)
            taken_s.append(time.perf_counter() - began)
        return len(prompts) / float(np.median(taken_s[1:]))

    async def _samples(self, group: Group) -> list[Floats]:
        """What single prompts chose, [layers, experts] each."""
        chance = np.random.default_rng(2)
        found = []
        await self._counts(group)
        for number in range(SAMPLED):
            await self._answer(group, self._prompt(self._asked[number % len(self._asked)], chance))
            found.append(await self._counts(group))
        return found

    async def _turn(self, group: Group, number: int, rate: float, turns: Turns) -> None:
        """The same requests for all policies of a round. Who decides again is told what was chosen."""
        chance = np.random.default_rng([7, number])
        seconds = max(self._setting.seconds, FEWEST / rate)
        arrivals = gamma_arrivals(rate, self._setting.cv, seconds, chance)
        kinds = (arrivals // STRETCH_S + number).astype(int) % len(self._asked)
        prompts = [self._prompt(self._asked[kind], chance) for kind in kinds]
        await self._counts(group)
        busy_s = sum(group.states[MODEL].busy_s)
        began = time.perf_counter() + 0.05

        async def ask(at: float, prompt: list[int]) -> float:
            await asyncio.sleep(max(began + at - time.perf_counter(), 0.0))
            await self._answer(group, prompt)
            return time.perf_counter() - began - at

        asked = [ask(float(at), prompt) for at, prompt in zip(arrivals, prompts, strict=True)]
        latency_s = np.array(await asyncio.gather(*asked))
        turns.latency_s.append(latency_s[arrivals >= FILLING * arrivals[-1]])
        turns.busy_s.append((sum(group.states[MODEL].busy_s) - busy_s) / len(arrivals))
        self._note(await self._counts(group))

    async def _all_at_once(self, group: Group, prompts: list[list[int]]) -> None:
        await asyncio.gather(*(self._answer(group, prompt) for prompt in prompts))

    async def _answer(self, group: Group, prompt: list[int]) -> None:
        self._number += 1
        params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
        # A first token of its own, so that no prompt is found in the cache of another turn.
        own = [8 + self._number % (self._sizes.vocabulary - 8), *prompt[1:]]
        async for _ in group.generate(f"r{self._number}", MODEL, own, params):
            pass

    def _prompt(self, tokens: list[int], chance: np.random.Generator) -> list[int]:
        length = self._setting.prompt_tokens
        begin = int(chance.integers(len(tokens) - length))
        return tokens[begin : begin + length]

    async def _counts(self, group: Group) -> Floats:
        return np.array((await group.take_routes(MODEL)).all, np.float64)

    def _note(self, counts: Floats) -> None:
        self._recent.note(counts, int(counts[0].sum() / self._sizes.top_k))

    def _balance(self, policy: str, placement: ExpertPlacement, samples: list[Floats]) -> float:
        speed = self._pool.speed
        splitter = Splitter(placement, speed)
        levels = [
            even_levels(counts, placement, speed) if policy == "eplb" else splitter.levels(counts) for counts in samples
        ]
        each = [balancedness(counts, level, speed).mean() for counts, level in zip(samples, levels, strict=True)]
        return float(np.mean(each))

    def _report(self, turns: dict[str, Turns], capacity: dict[str, float], moved: int) -> dict[str, Any]:
        ours = turns["penstock"]
        ratios = {f"{policy}_over_ours": turns[policy].p95_s / ours.p95_s for policy in ("static", "eplb")}
        by_round = {
            policy: [
                round(float(np.quantile(theirs, 0.95) / np.quantile(mine, 0.95)), 3)
                for theirs, mine in zip(turns[policy].latency_s, ours.latency_s, strict=True)
            ]
            for policy in ("static", "eplb")
        }
        busy = {policy: np.mean(turns[policy].busy_s) / np.mean(ours.busy_s) for policy in ("static", "eplb")}
        return {
            "benchmark": "moe_serving",
            "ratio": round(ratios["eplb_over_ours"], 3),
            "p95": {name: round(value, 3) for name, value in ratios.items()},
            "goals": GOALS,
            "not_reached": [name for name, value in ratios.items() if value < GOALS[name]],
            "by_round": by_round,
            "busy_over_ours": {policy: round(float(value), 3) for policy, value in busy.items()},
            "policies": {policy: one.figures() for policy, one in turns.items()},
            "requests_of_each": int(sum(map(len, ours.latency_s))),
            "capacity_per_s": {policy: round(rate, 2) for policy, rate in capacity.items()},
            "experts_copied_after_the_first": moved,
            "expert_width": self._sizes.expert_ffn,
            "workers": "real, paced",
            **{name: value for name, value in vars(self._setting).items() if name != "history"},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a random model on two devices for a second: a check")
    parser.add_argument("--model", type=Path, help="its directory; made, and kept for the next time, when absent")
    parser.add_argument("--expert-width", type=int, default=SETTINGS[MODEL].ffn, help="of the model that is made")
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="of each turn")
    parser.add_argument("--load", type=float, default=FULL.load, help="of what static placement can serve")
    parser.add_argument("--cv", type=float, default=FULL.cv, help="of the times between requests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.tiny:
            path, setting = Path(folder) / MODEL, SMALL
            make_random(path, **TINY)
            texts = np.random.default_rng(0).integers(8, 256, (2, 4096)).tolist()
        else:
            path = options.model or _made(options.expert_width)
            setting = replace(FULL, rounds=options.rounds, seconds=options.seconds, load=options.load, cv=options.cv)
            texts = _texts(path)
        emit(run(Experiment(setting, path, texts).run()))


def _texts(path: Path) -> list[list[int]]:
    """What the model has not seen, of each kind."""
    tokenizer, pieces = Tokenizer.from_file(str(path / "tokenizer.json")), split(read_corpus()).held_out
    kinds = ([one for one in pieces if (one.kind == "topic") is is_topic] for is_topic in (True, False))
    return [token_stream(tokenizer, tuple(kind), seed=0, small_talk=False).tolist() for kind in kinds]


def _made(width: int) -> Path:
    """By the recipe of `penstock models make`, with experts as wide as wished."""
    folder = cache_folder("benchmark-models") / f"experts-{width}"
    note("making the model, if it is not there yet")
    make_models(folder, (MODEL,), settings={MODEL: msgspec.structs.replace(SETTINGS[MODEL], ffn=width)})
    return folder / MODEL


if __name__ == "__main__":
    main()
