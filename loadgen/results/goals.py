"""Goals that an answer is judged by: --slo, which the server is told too, and --goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen import checks, option_text
from loadgen.errors import TrafficError
from loadgen.results.record import Record
from loadgen.target.models import TargetModel

_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Goal:
    """Infinite: no goal. An answer that came in one piece has its whole latency for TTFT."""

    latency_s: float = math.inf
    ttft_s: float = math.inf
    tpot_s: float = math.inf

    @property
    def headers(self) -> dict[str, str]:
        """What tells the server: TTFT when the model generates, else the whole latency."""
        first, told = min(self.ttft_s, self.latency_s), {}
        if math.isfinite(first):
            told["x-slo-ms"] = f"{first * 1e3:.6g}"
        if math.isfinite(self.tpot_s):
            told["x-slo-tpot-ms"] = f"{self.tpot_s * 1e3:.6g}"
        return told

    def is_met(self, record: Record) -> bool:
        if not record.is_answered or record.latency_s > self.latency_s or record.tpot_s > self.tpot_s:
            return False
        first_s = record.latency_s if math.isnan(record.ttft_s) else record.ttft_s
        return first_s <= self.ttft_s

    def __str__(self) -> str:
        named = {"latency": self.latency_s, "TTFT": self.ttft_s, "TPOT": self.tpot_s}
        parts = [f"{name} {value * 1e3:g} ms" for name, value in named.items() if math.isfinite(value)]
        return ", ".join(parts) or "none"


def slo_goals(text: str, models: Sequence[TargetModel]) -> list[Goal]:
    """--slo: a time, or TTFT/TPOT for models that generate; one for all models, or NAME=TIME for some."""
    given = option_text.by_model(text, [model.name for model in models], "--slo") if text else {}
    return [_slo(given[model.name], model) if model.name in given else Goal() for model in models]


def goodput_goal(parts: Sequence[str]) -> Goal | None:
    """--goodput: `ttft:500 tpot:50`, in milliseconds unless another unit stands there; None when not given."""
    limits: dict[str, float] = {}
    for part in " ".join(parts).replace(",", " ").split():
        metric, colon, value = part.partition(":")
        if metric not in _METRICS or not colon:
            raise TrafficError(f"--goodput: {checks.shown(part)} is no goal; give some of ttft:500 tpot:50 e2el:2000")
        limits[metric] = option_text.seconds(value, f"--goodput {metric}", option_text.MS)
    if not limits:
        return None
    none = math.inf
    return Goal(limits.get("e2el", none), limits.get("ttft", none), limits.get("tpot", none))


def _slo(text: str, model: TargetModel) -> Goal:
    first, slash, second = text.partition("/")
    first_s = option_text.seconds(first, "--slo", option_text.MS)
    if model.generates:
        return Goal(ttft_s=first_s, tpot_s=option_text.seconds(second, "--slo", option_text.MS) if slash else math.inf)
    if slash:
        raise TrafficError(f"--slo: {model.name} does not generate, so has no TPOT; give it one time")
    return Goal(latency_s=first_s)
