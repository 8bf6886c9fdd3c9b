"""A small model on every shape that this machine's devices allow: whether it says what one CPU core says, and how fast.

The reference is one core that computes each answer anew for every token, from the whole text before it: no cache, no
decoding. What a device, a shape or a decoding kernel does wrong shows in the log-probabilities.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path

from placement.errors import InputError
from placement.profile import Shape
from serving.check.results import Finding, judged
from serving.engine.outputs import Produced
from serving.models import read_config
from serving.profiler.present import measured_shapes
from serving.sampling import SamplingParams
from serving.worker.group import Group, GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

MODEL = "small"
PROMPTS = ([5, 6, 7, 8, 9, 10], list(range(20, 60)))
TOKENS = 12
SPEED_TOKENS, SPEED_REQUESTS = 48, 8
TOLERANCE = 2e-2
HALF_TOLERANCE = 0.2
"""Of devices that compute in half precision."""
CACHE_BYTES = 64 * 2**20


def make_small_model(directory: Path) -> None:
    from serving.small_models.random import make_random

    make_random(directory, hidden=256, layers=4, heads=4, kv_heads=4, ffn=512, vocabulary=512, max_positions=512)


async def check_shapes(directory: Path, devices: list[str]) -> list[Finding]:
    shapes = measured_shapes(read_config(directory).sizes, min(len(devices), 8))
    expected = await _reference(directory)
    return [await _check_shape(directory, shape, devices[: shape.devices], expected) for shape in shapes]


async def _check_shape(directory: Path, shape: Shape, devices: list[str], expected: list[list[Produced]]) -> Finding:
    is_gpu = devices[0].startswith("cuda")
    what = f"{shape} on {', '.join(devices)}"
    try:
        group = await _start(directory, devices, shape)
        try:
            found = [await _ask(group, f"a-{place}", prompt, TOKENS) for place, prompt in enumerate(PROMPTS)]
            rate = await _tokens_per_s(group)
        finally:
            await group.stop()
    except (GroupLost, RequestFailed, InputError) as error:
        return judged("engine", what, False, str(error))
    pairs = [(a, b) for ours, theirs in zip(found, expected, strict=True) for a, b in zip(ours, theirs, strict=True)]
    off, same = _difference(pairs)
    tolerance = HALF_TOLERANCE if is_gpu else TOLERANCE
    holds = off <= tolerance and (same == len(pairs) or is_gpu)
    return judged(
        "engine",
        what,
        holds,
        logprob_error=float(f"{off:.1e}"),
        same_tokens=f"{same} of {len(pairs)}",
        tokens_per_s=round(rate),
    )


def _difference(pairs: list[tuple[Produced, Produced]]) -> tuple[float, int]:
    """The largest difference of log-probabilities up to the first other token of each answer; tokens that are the
    same."""
    same = sum(a.token == b.token for a, b in pairs)
    errors = [abs(a.logprobs.logprob - b.logprobs.logprob) for a, b in pairs if a.logprobs and b.logprobs]
    return max(errors, default=float("inf")), same


async def _reference(directory: Path) -> list[list[Produced]]:
    group = await _start(directory, ["cpu:0"], Shape(1, 1))
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


async def _start(directory: Path, devices: list[str], shape: Shape) -> Group:
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
        precision = "fp16" if is_gpu else "fp32"
        await group.load(ModelSpec(name=MODEL, path=str(directory), precision=precision, kv_bytes=CACHE_BYTES))
    except BaseException:
        await group.stop()
        raise
    return group


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
