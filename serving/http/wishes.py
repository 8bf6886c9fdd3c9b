"""What a request says in its headers: how soon, how important. And which model it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from router.request import PRIORITIES, Priority
from serving.http.call import Call
from serving.http.errors import BadRequest, NotFound
from serving.http.service import Kind, ServedModel

_MOST_MS = 86_400_000.0


@dataclass(frozen=True, slots=True)
class Wishes:
    slo_s: float | None = None
    tpot_s: float | None = None
    priority: Priority = "standard"


_NONE = Wishes()


def read_wishes(call: Call) -> Wishes:
    headers = call.headers
    if b"x-slo-ms" not in headers and b"x-slo-tpot-ms" not in headers and b"x-priority" not in headers:
        return _NONE
    priority = headers.get(b"x-priority", b"standard").decode("latin-1").lower()
    if priority not in PRIORITIES:
        raise BadRequest(f"x-priority: {priority[:50]!r}; one of {', '.join(PRIORITIES)} is needed", param="x-priority")
    return Wishes(_seconds(headers, b"x-slo-ms"), _seconds(headers, b"x-slo-tpot-ms"), priority)


def find_model(models: Mapping[str, ServedModel], name: str, kind: Kind | None = None) -> ServedModel:
    """NotFound for a name that is not served; BadRequest for a model that does something else."""
    model = models.get(name)
    if model is None:
        raise NotFound(
            f"model {name!r} is not served here; /v1/models lists those that are", "model", "model_not_found"
        )
    if kind is not None and model.kind != kind:
        does = {"generate": "generates text", "embed": "makes embeddings", "classify": "classifies"}
        raise BadRequest(f"model {name!r} {does[model.kind]}; this route needs one that {does[kind]}", "model")
    return model


def _seconds(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    given = headers.get(name)
    if given is None:
        return None
    try:
        ms = float(given)
    except ValueError:
        ms = math.nan
    if not 0 < ms <= _MOST_MS:
        shown = name.decode()
        raise BadRequest(f"{shown}: {given[:50]!r}; milliseconds above 0 are needed", param=shown)
    return ms / 1e3
