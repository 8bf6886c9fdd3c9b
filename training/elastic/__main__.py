"""The coordinator of one `lm` job: `python -m training.elastic FOLDER`, where lm.json says what to train.

Exit code 0: the model is made, or it was told to stop; 1: it failed; 2: what it was asked for is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from placement.errors import InputError
from placement.files import read_document
from serving.worker.event_loop import run as run_loop
from serving.worker.launcher import Launcher
from serving.worker.local_launcher import LocalLauncher
from training.elastic.coordinator import Coordinator, JobFailed
from training.elastic.door import open_door
from training.elastic.spec import LmSpec, check_readable, read_spec
from training.elastic.task import DOOR, FINISHED, TASK, Task
from training.elastic.tokens import prepare_tokens

_log = logging.getLogger("training.elastic")


def main(folder: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        task = read_document(folder / TASK, Task)
        if (folder / FINISHED).exists():
            return 0
        spec = read_spec(task.lm)
        model, data = (check_readable(path, task.roots) for path in (spec.model, spec.data))
        (folder / DOOR).unlink(missing_ok=True)  # of an earlier run that was killed
        run_loop(_run(task, spec, folder, prepare_tokens(data, model, folder)))
    except InputError as error:
        _log.error("%s", error)
        return 2
    except JobFailed as error:
        _log.error("%s", error)
        return 1
    return 0


async def _run(task: Task, spec: LmSpec, folder: Path, tokens: Path) -> None:
    launcher: Launcher = LocalLauncher(lambda name, line: _log.info("%s: %s", name, line))
    host = None
    if task.ray is not None:
        from serving.machines.ray_launcher import RayLauncher, join

        joined = await join(task.ray)
        host = joined.host
        launcher = RayLauncher(joined, lambda name, node, line: _log.info("%s on %s: %s", name, node, line))
    coordinator = Coordinator(task, spec, folder, tokens, launcher, host)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.stop)
    async with await open_door(coordinator, folder, task.run):
        await coordinator.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
