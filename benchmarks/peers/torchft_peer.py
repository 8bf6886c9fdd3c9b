"""torchft's workers joining, leaving and dying: `python torchft_peer.py HEARTBEAT_TIMEOUT_MS CYCLES`. Two replicas of a
vector of 100,000 numbers, steps of 50 ms, its lighthouse and gloo on the loopback, its own transfer of state. Prints
one JSON object of lists of seconds: `join`, `leave` and `kill` as in benchmarks/elastic.py, and `leave_to_step` from
the signal to the next step of the one that stays. Needs nothing but torchft.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

STEP_S, WAIT_S = 0.05, 60.0
Event = list[Any]


def work(name: str) -> None:
    import logging

    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    state = torch.zeros(100_000)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=lambda loaded: state.copy_(loaded["state"]),
        state_dict=lambda: {"state": state},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=name,
        hostname="127.0.0.1",
        heartbeat_interval=timedelta(milliseconds=50),
    )
    _say(name, "ready", 0)
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: leaving.append(number))
    while not leaving:
        manager.start_quorum()
        gradient = torch.ones_like(state)
        time.sleep(STEP_S)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            state += gradient
            _say(name, "step", manager.num_participants())
    manager.shutdown(wait=False)
    os._exit(0)


def _say(*facts: Any) -> None:
    sys.stdout.write(json.dumps([*facts, time.time()]) + "\n")
    sys.stdout.flush()


class Crew:
    def __init__(self, heartbeat_ms: int) -> None:
        from torchft.coordination import LighthouseServer  # type: ignore[import-not-found]

        self._lighthouse = LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=1,
            join_timeout_ms=100,
            quorum_tick_ms=10,
            heartbeat_timeout_ms=heartbeat_ms,
        )
        address = self._lighthouse.address().replace(os.uname().nodename, "127.0.0.1")
        self._environment = dict(os.environ) | {"TORCHFT_LIGHTHOUSE": address, "OMP_NUM_THREADS": "1"}
        self._events: list[Event] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, __file__, "work", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("["):
                    self._events.append(json.loads(line))

        threading.Thread(target=read, daemon=True).start()
        return process

    def when(self, is_it: Callable[[Event], bool]) -> float:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            for event in list(self._events):
                if is_it(event):
                    return float(event[-1])
            time.sleep(0.002)
        raise SystemExit("torchft's workers did not go on")


def measure(heartbeat_ms: int, cycles: int) -> dict[str, list[float]]:
    crew = Crew(heartbeat_ms)
    times: dict[str, list[float]] = {name: [] for name in ("join", "leave", "leave_to_step", "kill")}
    first = crew.start("first0")
    crew.when(lambda event: event[:2] == ["first0", "step"])
    for cycle in range(2 * cycles):
        name, is_killed = f"other{cycle}", bool(cycle % 2)
        other = crew.start(name)
        ready = crew.when(lambda event, name=name: event[:2] == [name, "ready"])  # type: ignore[misc]
        times["join"].append(crew.when(lambda event, name=name: event[:3] == [name, "step", 2]) - ready)  # type: ignore[misc]
        time.sleep(3 * STEP_S)
        began = time.time()
        other.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
        other.wait()
        if not is_killed:
            times["leave"].append(time.time() - began)
        alone = crew.when(lambda event, began=began: event[:3] == ["first0", "step", 1] and event[-1] > began)  # type: ignore[misc]
        times["kill" if is_killed else "leave_to_step"].append(alone - began)
        time.sleep(3 * STEP_S)
    first.kill()
    first.wait()
    return times


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2])
    else:
        sys.stdout.write(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
