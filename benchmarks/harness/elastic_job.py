"""One `lm` job on this machine, as the queue's keeper would run it, and what its history says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from placement.files import encode_json, replace_file
from training.elastic.door import Answer, ask, find_door
from training.elastic.spec import LmSpec
from training.elastic.task import HISTORY, TASK, Task

WAIT_S = 120.0
RUN = "benchmark"


class ElasticJob:
    def __init__(self, folder: Path, spec: LmSpec, devices: tuple[int, ...]) -> None:
        self.folder = folder
        folder.mkdir()
        task = Task(lm=msgspec.to_builtins(spec, enc_hook=float), run=RUN, devices=_places(devices))
        replace_file(folder / TASK, encode_json(task))
        with open(folder / "log", "ab") as log:
            command = [sys.executable, "-P", "-m", "training.elastic", str(folder)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.wait(lambda: find_door(folder, RUN) is not None)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, *devices: int) -> Answer:
        """With devices: train on those from now on."""
        return ask(self.folder, RUN, _places(devices) if devices else None)

    def park(self) -> Answer:
        """Wait in memory, without devices."""
        return ask(self.folder, RUN, {})

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)

    def history(self, what: str, since: float = 0.0) -> list[dict[str, Any]]:
        lines = (self.folder / HISTORY).read_bytes().splitlines() if (self.folder / HISTORY).exists() else []
        found = [json.loads(line) for line in lines if line.endswith(b"}")]
        return [one for one in found if one["what"] == what and one["at"] > since]

    def first_step(self, workers: int, since: float) -> float:
        """When so many workers had made a step together."""
        self.wait(lambda: any(one["workers"] == workers for one in self.history("step", since)))
        return next(float(one["at"]) for one in self.history("step", since) if one["workers"] == workers)

    def longest_pause(self, since: float) -> float:
        """Between two steps."""
        before = [one["at"] for one in self.history("step") if one["at"] <= since][-1:]
        times = before + [one["at"] for one in self.history("step", since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def wait(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not is_so():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the job did not go on: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.002)


def _places(devices: tuple[int, ...]) -> dict[str, str]:
    return {f"local/{number}": f"cpu:{number}" for number in devices}
