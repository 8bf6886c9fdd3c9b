"""What came of serving a workload: per request, per model, per group. Knows nothing of how it was decided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placement.clocks import Floats, Ints
from placement.dispatch import REASONS, SERVED
from placement.plan import Plan
from placement.problem import Problem
from placement.workload import Workload

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Outcome:
    """One row a request: `status` (0 served, else an index into REASONS), `group`, `batch` (which batch it ran in),
    `first` and `finish` (seconds; overhead included; NaN where not served), and the stages it ran through,
    `stage_start` and `stage_end` [n, stages] (NaN where none; for a generating request its first and last step)."""

    problem: Problem
    plan: Plan
    workload: Workload
    status: NDArray[np.int8]
    group: Ints
    batch: Ints
    first: Floats
    finish: Floats
    stage_start: Floats
    stage_end: Floats
    busy_s: Floats
    """[groups] seconds of work, averaged over the group's devices."""

    @cached_property
    def met(self) -> NDArray[np.bool_]:
        """Which requests were answered within their SLO."""
        models = self.problem.models
        of = self.workload.model
        end_to_end = np.array([model.slo.end_to_end for model in models])[of]
        ttft = np.array([model.slo.ttft for model in models])[of]
        tpot = np.array([model.slo.tpot for model in models])[of]
        arrival = self.workload.arrival
        with np.errstate(invalid="ignore"):
            met: NDArray[np.bool_] = (
                (self.status == SERVED)
                & (self.finish <= arrival + end_to_end + 1e-9)
                & (self.first <= arrival + ttft + 1e-9)
                & (self.time_per_token <= tpot + 1e-9)
            )
        return met

    @cached_property
    def time_per_token(self) -> Floats:
        """Seconds per output token after the first; 0 for a one-token or one-pass answer."""
        if self.workload.output_tokens is None:
            return np.zeros(len(self.workload))
        gaps = np.maximum(self.workload.output_tokens - 1, 0)
        spent = self.finish - self.first
        return np.divide(spent, gaps, out=np.zeros(len(spent)), where=gaps > 0)

    @property
    def attainment(self) -> float:
        return float(self.met.mean())

    @cached_property
    def model_attainment(self) -> Floats:
        """[models]; NaN for a model without requests."""
        models = len(self.problem.models)
        counts = self.workload.counts(models)
        met = np.bincount(self.workload.model, weights=self.met, minlength=models)
        share: Floats = np.divide(met, counts, out=np.full(models, np.nan), where=counts > 0)
        return share

    @property
    def worst_model(self) -> tuple[str, float]:
        index = int(np.nanargmin(self.model_attainment))
        return self.problem.models[index].name, float(self.model_attainment[index])

    def summary(self) -> dict[str, Any]:
        """The figures that `penstock simulate --json` prints."""
        duration = max(self.workload.duration, float(np.nanmax(self.finish, initial=0.0)), 1e-9)
        return {
            "requests": len(self.workload),
            "attainment": self.attainment,
            "worst_model": list(self.worst_model),
            "goodput": float(self.met.sum()) / duration,
            "latency": self._latency(np.ones(len(self.workload), np.bool_)),
            "reasons": self._reasons(np.ones(len(self.workload), np.bool_)),
            "models": {
                model.name: self._model_summary(index, duration) for index, model in enumerate(self.problem.models)
            },
            "groups": [self._group_summary(index, duration) for index in range(len(self.plan.groups))],
        }

    def _model_summary(self, index: int, duration: float) -> dict[str, Any]:
        rows = self.workload.model == index
        summary: dict[str, Any] = {
            "requests": int(rows.sum()),
            "attainment": _number(self.model_attainment[index]),
            "goodput": float(self.met[rows].sum()) / duration,
            "latency": self._latency(rows),
            "queue": _spread(self.stage_start[rows, 0] - self.workload.arrival[rows]),
            "reasons": self._reasons(rows),
            "replicas": len(self.plan.replicas(self.problem.models[index].name)),
        }
        if self.problem.models[index].generates:
            summary["ttft"] = _spread(self.first[rows] - self.workload.arrival[rows])
            summary["tpot"] = _spread(self.time_per_token[rows])
        return summary

    def _group_summary(self, index: int, duration: float) -> dict[str, Any]:
        group = self.plan.groups[index]
        rows = self.group == index
        return {
            "devices": list(group.devices),
            "shape": [group.tp, group.pp],
            "models": len(group.models),
            "requests": int(rows.sum()),
            "batches": len(np.unique(self.batch[rows & (self.batch >= 0)])),
            "utilisation": float(self.busy_s[index]) / duration,
        }

    def _latency(self, rows: NDArray[np.bool_]) -> dict[str, float | None]:
        return _spread(self.finish[rows] - self.workload.arrival[rows])

    def _reasons(self, rows: NDArray[np.bool_]) -> dict[str, int]:
        counts = np.bincount(self.status[rows], minlength=len(REASONS))
        return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}


def write_requests(path: Path, outcome: Outcome) -> None:
    """One row a request, for anybody who wants to check what happened (docs/simulator.md)."""
    import io

    from placement.files import replace_file

    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        status=outcome.status,
        group=outcome.group.astype(np.int32),
        batch=outcome.batch.astype(np.int32),
        first=outcome.first,
        finish=outcome.finish,
        stage_start=outcome.stage_start,
        stage_end=outcome.stage_end,
    )
    replace_file(path, buffer.getvalue())


def _spread(values: Floats) -> dict[str, float | None]:
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, **{f"p{share}": None for share in PERCENTILES}}
    points = np.percentile(values, PERCENTILES)
    spread: dict[str, float | None] = {"mean": float(values.mean())}
    return spread | {f"p{share}": float(point) for share, point in zip(PERCENTILES, points, strict=True)}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
