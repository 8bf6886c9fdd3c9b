"""Starts the ranks of a group as real processes, hears what they report, kills them, and leaves none behind.

The processes are forked by a server that has imported torch, so that a group starts in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from serving.parallel import Layout, Parallel, connect

_START = multiprocessing.get_context("forkserver")
_START.set_forkserver_preload(["serving.parallel.local", "serving.parallel.remote", "tests.serving.parallel.warm"])
LIMIT_S = 90


@dataclass
class Rank:
    """What a process's part of a test gets."""

    parallel: Parallel
    layout: Layout
    say: Any

    def tensor(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
        """What `rank` brings: every process can make every rank's, and so knows the right answer."""
        made = torch.Generator().manual_seed(1000 * seed + rank)
        return torch.randint(-8, 8, shape, generator=made).to(dtype)


class Ranks:
    """The processes of one group, each running `part(rank: Rank)`, whose value is the last thing heard of it."""

    def __init__(self, part: Any, tp: int, pp: int, rendezvous: Any, backend: str = "shared", **options: Any) -> None:
        self._options = {"wait_s": 60.0, "absent": (), "late": {}} | options
        self._processes: dict[int, Any] = {}
        self._wires: dict[int, Connection] = {}
        for rank in range(tp * pp):
            if rank not in self._options["absent"]:
                self._start(part, Layout(tp, pp, rank), str(rendezvous), backend)

    def _start(self, part: Any, layout: Layout, rendezvous: str, backend: str) -> None:
        here, there = _START.Pipe()
        late_s = self._options["late"].get(layout.rank, 0.0)
        arguments = (part, layout, rendezvous, backend, self._options["wait_s"], late_s, there)
        process = _START.Process(target=_main, args=arguments, daemon=True)
        process.start()
        there.close()
        self._processes[layout.rank], self._wires[layout.rank] = process, here

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for rank, process in self._processes.items():
            process.join(LIMIT_S)
            self._wires[rank].close()

    def hear(self, rank: int) -> Any:
        wire = self._wires[rank]
        assert wire.poll(LIMIT_S), f"rank {rank} says nothing"
        kind, value = wire.recv()
        assert kind == "said", value
        return value

    def hear_all(self) -> list[Any]:
        return [self.hear(rank) for rank in self._processes]

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()
        self._processes[rank].join(LIMIT_S)

    def exit_codes(self) -> list[int | None]:
        for process in self._processes.values():
            process.join(LIMIT_S)
        return [process.exitcode for process in self._processes.values()]


def _main(
    part: Any, layout: Layout, rendezvous: str, backend: str, wait_s: float, late_s: float, wire: Connection
) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[layout.rank % len(cores)]})
    try:
        time.sleep(late_s)
        parallel = connect(layout, rendezvous, backend, wait_s)  # type: ignore[arg-type]
        wire.send(("said", part(Rank(parallel, layout, lambda value: wire.send(("said", value))))))
        parallel.close()
    except Exception:
        wire.send(("failed", traceback.format_exc()))
