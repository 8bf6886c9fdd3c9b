"""The process of one worker: `python -m training.elastic.worker_process`, with its task on stdin."""

from __future__ import annotations

import logging
import os
import signal
import sys

from placement.errors import InputError
from placement.files import convert
from serving.worker.device import parse_device
from serving.worker.lifeline import read_document
from training.elastic.cores import Cores
from training.elastic.task import WorkerTask

NICE = 10
"""On CPU what serves requests shares its core, and comes first."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        task = convert(read_document(), WorkerTask, "task of a worker")
        if parse_device(task.device).kind != "cpu":
            raise InputError(f"device {task.device}: lm jobs train on CPU so far")
        cores = Cores()
        cores.move(task.device)
        os.nice(NICE)
        import torch

        torch.set_num_threads(1)
        from training.elastic.worker import Worker

        worker = Worker(task, cores)
        signal.signal(signal.SIGTERM, lambda number, frame: worker.leave())
        worker.work()
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # tearing torch down takes a second, and there is nothing to tear down
