"""A small model on every shape that this machine's devices allow: whether it says what one CPU core says, and how fast.

The reference is one core that computes each answer anew for every token, from the whole text before it: no cache, no
decoding. What a device, a shape or a decoding kernel does wrong shows in the log-probabilities.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

from placement.profile import Shape
from serving.check.results import Finding, judged, skipped, telling
from serving.engine.outputs import Produced
from serving.models import read_config
from serving.profiler.present import measured_shapes
from serving.sampling import SamplingParams
from serving.worker.group import Group, GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

MODEL = "small"
PROMPTS = ([5, 6, 7, 8, 9, 10], list(range(20, 60)))
TOKENS = 12
SPEED_TOKENS, SPEED_REQUESTS = 48, 8
TOLERANCE = 2e-2
HALF_TOLERANCE = 0.2
"""Of half precision and int8 weights."""
CACHE_BYTES = 64 * 2**20


def make_small_model(directory: Path) -> None:
    from serving.small_models.random import make_random

    make_random(directory, hidden=256, layers=4, heads=4, kv_heads=4, ffn=512, vocabulary=512, max_positions=512)


class How(NamedTuple):
    """How the engine computes the model."""

    precision: str
    graphs: bool = False


async def check_shapes(directory: Path, devices: list[str]) -> list[Finding]:
    """Every shape; then one device with int8 weights, and with decode graphs."""
    shapes = measured_shapes(read_config(directory).sizes, min(len(devices), 8))
    is_gpu, expected = devices[0].startswith("cuda"), await _reference(directory)
    usual = How("fp16" if is_gpu else "fp32")
    tried = [(shape, usual) for shape in shapes] + [(Shape(1, 1), How("int8"))]
    if is_gpu:
        tried.append((Shape(1, 1), How("fp16", graphs=True)))
    found = list[Finding]()
    for shape, how in tried:
        used = devices[: shape.devices]
        what = f"{shape} on {', '.join(used)}{', int8' * (how.precision == 'int8')}{', decode graphs' * how.graphs}"
        with telling("engine", what, found):
            found.append(await _check_shape(directory, shape, used, how, expected, what))
    return found if is_gpu else [*found, skipped("engine", "decode graphs", "needs a CUDA device")]


async def _check_shape(
    directory: Path, shape: Shape, devices: list[str], how: How, expected: list[list[Produced]], what: str
) -> Finding:
    group, facts = await _start(directory, devices, shape, how)
    try:
        found = [await _ask(group, f"a-{place}", prompt, TOKENS) for place, prompt in enumerate(PROMPTS)]
        rate = await _tokens_per_s(group)
    finally:
        await group.stop()
    off, same = difference(found, expected)
    recorded: dict[str, Any] = {"graphs": len(facts["graphs"])} if how.graphs else {}
    total, is_exact = sum(len(answer) for answer in expected), how.precision == "fp32"
    is_near = off <= TOLERANCE and same == total if is_exact else off <= HALF_TOLERANCE
    return judged(
        "engine",
        what,
        is_near and bool(facts["graphs"]) == how.graphs,
        logprob_error=float(f"{off:.1e}"),
        same_tokens=f"{same} of {total}",
        tokens_per_s=round(rate),
        **recorded,
    )


def difference(found: list[list[Produced]], expected: list[list[Produced]]) -> tuple[float, int]:
    """The largest difference of log-probabilities up to the first other token of each answer, behind which the text is
    another; tokens that are the same."""
    errors, same = [], 0
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if a.logprobs is None or b.logprobs is None:
                return float("inf"), same
            errors.append(abs(a.logprobs.logprob - b.logprobs.logprob))
            if a.token != b.token:
                break
            same += 1
    return max(errors, default=float("inf")), same


async def _reference(directory: Path) -> list[list[Produced]]:
    group, _ = await _start(directory, ["cpu:0"], Shape(1, 1), How("fp32"))
    try:
        answers = []
        for place, prompt in enumerate(PROMPTS):
            text, answer = list(prompt), list[Produced]()
            for step in range(TOKENS):
                one = (await _ask(group, f"r-{place}-{step}", text, 1))[0]
                assert one.token is not None
                answer.append(one)
                text.append(one.token)
            answers.append(answer)
        return answers
    finally:
        await group.stop()


async def _start(directory: Path, devices: list[str], shape: Shape, how: How) -> tuple[Group, dict[str, Any]]:
    """With the model, and what its loading told."""
    is_gpu = devices[0].startswith("cuda")
    spec = GroupSpec(
        name="check",
        devices=tuple(devices),
        tp=shape.tp,
        pp=shape.pp,
        backend="nccl" if is_gpu and shape.devices > 1 else "shared",
    )
    group = await start_group(spec, LocalLauncher(on_line=lambda name, line: None), 120.0)
    try:
        return group, await group.load(
            ModelSpec(name=MODEL, path=str(directory), kv_bytes=CACHE_BYTES, **how._asdict())
        )
    except BaseException:
        await group.stop()
        raise


async def _ask(group: Group, name: str, prompt: list[int], tokens: int) -> list[Produced]:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=1)
    stream = group.generate(name, MODEL, prompt, params)
    async with aclosing(stream):
        return [produced async for produced in stream]


async def _tokens_per_s(group: Group) -> float:
    """Of some requests at once."""
    import asyncio

    async def one(number: int) -> int:
        params = SamplingParams(max_tokens=SPEED_TOKENS, temperature=0.0, ignore_eos=True)
        stream = group.generate(f"s-{number}", MODEL, [number + 1, *range(30, 60)], params)
        async with aclosing(stream):
            return len([produced async for produced in stream])

    began = time.perf_counter()
    made = sum(await asyncio.gather(*(one(number) for number in range(SPEED_REQUESTS))))
    return made / (time.perf_counter() - began)
