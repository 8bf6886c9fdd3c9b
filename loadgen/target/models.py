"""A model of the server under load, and how a server lists its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from loadgen import checks, option_text
from loadgen.errors import TrafficError

Kind = Literal["generate", "embed"]


@dataclass(frozen=True)
class TargetModel:
    name: str
    kind: Kind = "generate"
    max_tokens: int | None = None
    """Of prompt and answer together, if the server says."""

    @property
    def generates(self) -> bool:
        return self.kind == "generate"


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of GET /v1/models; servers of other makers leave `kind` out."""

    id: str
    kind: str | None = None
    max_model_len: int | None = None


class Listing(msgspec.Struct, frozen=True):
    data: list[ListedModel]


def choose_models(listed: Sequence[ListedModel], models: str, mix: str, kinds: str, url: str) -> list[TargetModel]:
    """Those of --models, else those of --mix, else all that can be driven."""
    served = {one.id: one for one in listed}
    if not served:
        raise TrafficError(f"{url}: serves no model; load one first")
    wanted = option_text.names(models) or [part.rpartition("=")[0].strip() for part in option_text.names(mix)]
    if len(set(wanted)) < len(wanted):
        raise TrafficError(f"--models: {max(wanted, key=wanted.count)} is there twice; give each name once")
    for name in wanted:
        if name not in served:
            raise TrafficError(f"model {checks.shown(name)} is not served at {url}; there are {_few(list(served))}")
    typed = option_text.by_model(kinds, list(served), "--kind") if kinds else {}
    for name, kind in typed.items():
        _kind(kind, name)
    chosen = [
        TargetModel(name, _kind(typed.get(name) or served[name].kind or "generate", name), served[name].max_model_len)
        for name in wanted or [one for one in served if (typed.get(one) or served[one].kind) in (None, *get_args(Kind))]
    ]
    if not chosen:
        raise TrafficError(f"{url}: none of its models generates or embeds; load one that does")
    return chosen


def _kind(text: str, name: str) -> Kind:
    if text == "generate":
        return "generate"
    if text == "embed":
        return "embed"
    raise TrafficError(f"model {name}: kind {checks.shown(text)} cannot be driven; give one of generate, embed")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
