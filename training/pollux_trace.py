"""Reads a Pollux workload with its profiles, and gives the simulator the speeds that were measured.

A job's seconds of work are those it takes with the replicas and batch it asks for; faster or slower settings move
through them at another rate, which changes from epoch to epoch. What a job would gain from other worker counts it
reports through its curve, as a running job does.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from placement.errors import InputError
from placement.units import Seconds
from training.arrays import Floats
from training.job_files import check_jobs, read_text
from training.jobs import MAX_WORKERS, Job, Measured
from training.ledger import Ledger
from training.pollux_app import NODE_DEVICES, WIDEST, App, consolidated, read_app
from training.table import Table

RESCALE_S = Seconds(30)
FIXED_BATCH = {"ncf": 32768.0}
"""Pollux tunes no batch for this one."""


@dataclass
class ProfiledSpeeds:
    """Speeds from the profiles. `tuned`: batch sizes follow the goodput; else they stay what the job asked for."""

    apps: dict[str, App]
    batches: dict[str, float]
    """The batch asked for, by job."""
    tuned: bool
    _edges: dict[int, Floats] = field(default_factory=dict)

    def rate(self, table: Table, ledger: Ledger, row: int) -> float:
        job = table.jobs[row]
        app, epoch = self.apps[job.model], self._epoch(table, row)
        nodes = ledger.nodes_of(row)
        placement = tuple(np.unique(nodes, return_counts=True)[1].tolist())
        batch = self._batch(job)
        count = len(nodes)
        setting = app.tuned(placement, epoch) if batch is None else app.for_batch(count, batch)
        curve = app.curve(epoch, batch, min(job.most, WIDEST))
        known = table.curves[table.curve[row]]
        known[: len(curve)] = curve
        known[len(curve) :] = curve[-1]
        table.one[row] = curve[min(job.gpus, len(curve) - 1)]
        return app.goodput(placement, setting, epoch) / self._asked(job, app, epoch)

    def until(self, table: Table, ledger: Ledger, row: int) -> float:
        """Seconds of work by the end of this epoch; the last has none but the job's."""
        edges, epoch = self._edges_of(table, row), self._epoch(table, row)
        return float(edges[epoch]) if epoch < len(edges) - 1 else np.inf

    def _batch(self, job: Job) -> float | None:
        if not self.tuned:
            return self.batches[job.id]
        return FIXED_BATCH.get(job.model)

    def _asked(self, job: Job, app: App, epoch: int) -> float:
        setting = app.for_batch(job.gpus, self.batches[job.id])
        return app.goodput(consolidated(job.gpus), setting, epoch)

    def _edges_of(self, table: Table, row: int) -> Floats:
        if row not in self._edges:
            job = table.jobs[row]
            app = self.apps[job.model]
            self._edges[row] = np.cumsum(epoch_seconds(app, job.gpus, self.batches[job.id]))
        return self._edges[row]

    def _epoch(self, table: Table, row: int) -> int:
        edges = self._edges_of(table, row)
        return int(min(np.searchsorted(edges, table.done[row] + 1e-6, side="right"), len(edges) - 1))


def epoch_seconds(app: App, replicas: int, batch: float) -> Floats:
    """Seconds of each epoch with that many replicas and that batch, consolidated."""
    setting, placement = app.for_batch(replicas, batch), consolidated(replicas)
    rates = np.array([app.goodput(placement, setting, epoch) for epoch in range(app.epochs)])
    seconds: Floats = np.diff(app.progress, prepend=0.0) / rates
    return seconds


def read_pollux(workload: Path, profiles: Path, tuned: bool, elastic: bool = True) -> tuple[list[Job], ProfiledSpeeds]:
    """The jobs of a workload and their speeds. `tuned`: batch sizes follow the goodput; `elastic`: from one worker to
    what the batch allows, else what each asks for."""
    apps: dict[str, App] = {}
    batches: dict[str, float] = {}
    jobs: list[Job] = []
    for line, row in enumerate(csv.DictReader(io.StringIO(read_text(workload))), start=2):
        try:
            name, arrival, model = row["name"], float(row["time"]), row["application"]
            gpus, batch = int(row["num_replicas"]), float(row["batch_size"])
            if not 1 <= gpus <= MAX_WORKERS or not 1 <= batch < np.inf:
                raise ValueError(f"{gpus} replicas with a batch of {batch:g}")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{workload}: line {line}: expected name,time,application,num_replicas,batch_size: {error}"
            ) from error
        if model not in apps:
            if not (profiles / model / "placements.csv").exists():
                raise InputError(f"{workload}: line {line}: no profile of {model!r} in {profiles}")
            apps[model] = read_app(profiles / model)
        app = apps[model]
        batches[name] = batch
        widest = int((app.batches[-1] if tuned else batch) // app.device_least)
        most = max(gpus, 1 if model in FIXED_BATCH else min(widest, WIDEST))
        try:
            jobs.append(
                Job(
                    id=name,
                    arrival=Seconds(arrival),
                    duration=Seconds(float(epoch_seconds(app, gpus, batch).sum())),
                    gpus=gpus,
                    min_gpus=1 if elastic else gpus,
                    max_gpus=most if elastic else gpus,
                    model=model,
                    restart=RESCALE_S,
                    resize=RESCALE_S,
                    # One table a job, which it fills in while it runs.
                    curve=Measured(throughput={1: 1.0, WIDEST: float(WIDEST) - 1e-6 * len(jobs)}),
                )
            )
        except ValueError as error:
            raise InputError(f"{workload}: line {line}: {error}") from error
    return check_jobs(jobs, str(workload)), ProfiledSpeeds(apps, batches, tuned)


__all__ = ["NODE_DEVICES", "ProfiledSpeeds", "epoch_seconds", "read_pollux"]
