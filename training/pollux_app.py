"""A training application as Pollux' authors profiled it: iteration times by placement and batch size, gradient
statistics by epoch. Reads their CSV files as they are."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from placement.errors import InputError
from training.arrays import Floats
from training.job_files import read_text

NODE_DEVICES = 4
WIDEST = 64
"""Workers that the profiles reach to."""
BATCHES = 16
SUB_BATCHES = 8
# Epochs that make a whole run, and the largest batch on a device where it is below the profiled one.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
DEVICE_LARGEST = {"yolov3": 8}


@dataclass(frozen=True)
class Setting:
    """How a job runs: samples on each device at a time, and sub-batches summed up before a synchronisation."""

    samples: int
    accumulated: int


@dataclass
class App:
    """`times` rows are (nodes, replicas, samples, step_s, sync_s); grad_sqr and grad_var are [batch sizes, epochs]."""

    name: str
    placements: dict[str, Floats]
    times: Floats
    batches: Floats
    progress: Floats
    """Iterations of the first batch size by the end of each epoch."""
    grad_sqr: Floats
    grad_var: Floats
    device_least: int
    device_largest: int
    _known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        return len(self.progress)

    @cached_property
    def _between(self) -> Any:
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(self.times[:, :3], self.times[:, 3:])

    def step(self, placement: tuple[int, ...], samples: float) -> tuple[float, float]:
        """Seconds of an iteration and of the waiting in it; `placement` is the replicas on each node."""
        key = ("step", placement, samples)
        if key not in self._known:
            turned = min(placement[at:] + placement[:at] for at in range(len(placement)))
            rows = self.placements.get("".join(map(str, turned)))
            if rows is not None:
                found = [float(np.interp(samples, rows[:, 0], rows[:, column])) for column in (1, 2)]
            else:
                where = (min(len(placement), 16), sum(placement), samples)
                found = [float(value) for value in self._between(where).ravel()]
                if not all(map(math.isfinite, found)):  # outside of what was profiled: the nearest point
                    near = np.abs(np.log(self.times[:, :3] / where)).sum(axis=1).argmin()
                    found = [float(value) for value in self.times[near, 3:]]
            self._known[key] = (found[0], found[1])
        result: tuple[float, float] = self._known[key]
        return result

    def gain(self, batch: float, epoch: int) -> float:
        """Progress of one iteration with that batch, against one with the first."""
        sqr = float(np.interp(batch, self.batches, self.grad_sqr[:, epoch]))
        var = float(np.interp(batch, self.batches, self.grad_var[:, epoch]))
        return (var + sqr) / (var * float(self.batches[0]) / batch + sqr)

    def goodput(self, placement: tuple[int, ...], setting: Setting, epoch: int) -> float:
        """Progress each second."""
        step, sync = self.step(placement, setting.samples)
        seconds = step + setting.accumulated * (step - sync)
        return self.gain(sum(placement) * setting.samples * (setting.accumulated + 1), epoch) / seconds

    def for_batch(self, replicas: int, batch: float) -> Setting:
        """The setting that comes closest to a given total batch."""
        local = math.ceil(batch / replicas - 1e-8)
        accumulated = math.ceil(local / self.device_largest - 1e-8) - 1
        if replicas == 1 and batch > self.batches[0]:
            accumulated = max(1, accumulated)
        samples = math.ceil(local / (accumulated + 1) - 1e-8)
        return Setting(max(min(samples, int(self.batches[-1] / (replicas * (accumulated + 1)))), 1), accumulated)

    def tuned(self, placement: tuple[int, ...], epoch: int) -> Setting:
        """The setting with the greatest goodput."""
        replicas = sum(placement)
        key = ("tuned", placement, epoch)
        if key not in self._known:
            least = max(float(self.batches[0]), float(self.device_least * replicas))
            totals = np.geomspace(least, max(float(self.batches[-1]), least), BATCHES)
            tries = {self.for_batch(replicas, float(total)) for total in totals}
            self._known[key] = max(
                (one for one in tries if one.samples >= self.device_least or replicas == 1),
                key=lambda one: (self.goodput(placement, one, epoch), -one.samples),
                default=self.for_batch(replicas, least),
            )
        result: Setting = self._known[key]
        return result

    def curve(self, epoch: int, batch: float | None, widest: int) -> Floats:
        """Goodput at 0, 1, .. replicas on as few nodes as can be; with the batch given, or tuned."""
        key = ("curve", epoch, batch, widest)
        if key not in self._known:
            rates = [0.0]
            for replicas in range(1, widest + 1):
                placement = consolidated(replicas)
                setting = self.tuned(placement, epoch) if batch is None else self.for_batch(replicas, batch)
                rates.append(self.goodput(placement, setting, epoch))
            self._known[key] = np.array(rates)
        result: Floats = self._known[key]
        return result


def consolidated(replicas: int) -> tuple[int, ...]:
    whole, rest = divmod(replicas, NODE_DEVICES)
    return (NODE_DEVICES,) * whole + ((rest,) if rest else ())


def read_app(folder: Path) -> App:
    """One application's profile: placements.csv, scalability.csv, validation-BATCH.csv."""
    name = folder.name
    placed = _table(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time"))
    scaled = _table(
        folder / "scalability.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    ).astype(np.float64)
    placements: dict[str, Any] = {}
    rows: list[list[float]] = []
    for digits, samples, step, sync in placed.tolist():
        placements.setdefault(digits, []).append((float(samples), float(step), float(sync)))
        rows.append([len(digits), sum(map(int, digits)), float(samples), float(step), float(sync)])
    known = {digits: np.array(sorted(points)) for digits, points in placements.items()}
    times = np.vstack((np.array(rows), scaled))
    times = times[np.unique(times[:, :3], axis=0, return_index=True)[1]]
    paths = sorted(folder.glob("validation-*.csv"), key=lambda path: int(path.stem.split("-")[1]))
    if not paths:
        raise InputError(f"{folder}: has no validation-BATCH.csv")
    runs = [_table(path, ("progress", "grad_sqr", "grad_var")).astype(np.float64) for path in paths]
    epochs = min(EPOCHS.get(name, 10**9), *(len(run) for run in runs))
    runs = [run[:epochs] for run in runs]
    return App(
        name,
        known,
        times,
        np.array([float(path.stem.split("-")[1]) for path in paths]),
        np.min([run[:, 0] for run in runs], axis=0),
        np.array([run[:, 1] for run in runs]),
        np.array([run[:, 2] for run in runs]),
        int(times[:, 2].min()),
        DEVICE_LARGEST.get(name, int(times[:, 2].max())),
    )


def _table(path: Path, columns: tuple[str, ...]) -> Any:
    """The named columns of a CSV file, as text."""
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    if not rows or any(column not in rows[0] for column in columns):
        raise InputError(f"{path}: expected the columns {', '.join(columns)}")
    return np.array([[row[column] for column in columns] for row in rows])
