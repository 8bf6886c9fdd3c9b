"""A request that a group answers at once if it works: one token, or one short input."""

from __future__ import annotations

from contextlib import aclosing
from itertools import count
from typing import Literal, NamedTuple

from serving.sampling import SamplingParams
from serving.worker.group import Group

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_numbers = count()


class Probe(NamedTuple):
    """How a model is asked whether it works."""

    kind: Literal["generate", "infer"]
    tokens: list[int]


async def probe(group: Group, model: str, how: Probe) -> None:
    """Returns when the model has answered; GroupLost when the group is gone."""
    request = f"probe-{next(_numbers)}"
    if how.kind == "infer":
        await group.infer(request, model, [how.tokens])
        return
    async with aclosing(group.generate(request, model, how.tokens, _PARAMS)) as stream:
        async for _ in stream:
            pass
