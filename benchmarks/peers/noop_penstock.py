"""Our whole path with a model that does nothing: endpoint, router and link in this process, the worker in another.

python -m benchmarks.peers.noop_penstock PORT CORE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from benchmarks.peers.noop_worker import WIDTH
from placement.cluster import Cluster
from placement.files import convert
from placement.plan import Group as PlanGroup
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.workload import Workload
from router import LiveGroup, Router, warm_up
from serving.http import HttpServer, HttpSettings, ServedModel, Service, configure_logs, make_app
from serving.text import Tokenizer
from serving.text.model_files import TextFiles
from serving.worker.event_loop import run
from serving.worker.group import Group, GroupLost, GroupSpec, start_group
from serving.worker.launcher import Handle, WorkerSpec
from serving.worker.local_launcher import LocalLauncher

NAME = "noop"
ROOT = Path(__file__).parents[2]
PASS_S = 0.0002
"""What the profile says of a batch, whatever its size."""


class NoopLauncher:
    def __init__(self) -> None:
        self._local = LocalLauncher()

    async def start(self, spec: WorkerSpec) -> Handle:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        spec = msgspec.structs.replace(
            spec, module="benchmarks.peers.noop_worker", environment=spec.environment | {"PYTHONPATH": path}
        )
        return await self._local.start(spec)


def make_problem() -> Problem:
    latency = {str(size): [PASS_S] for size in (1, 2, 4, 8, 16)}
    shape = {"tp": 1, "pp": 1, "stage_memory": [1], "stage_latency": latency}
    model = Model(NAME, convert({"shapes": [shape]}, Profile, NAME), Slo(5.0))
    cluster = convert({"nodes": [{"name": "n", "devices": 1, "memory": 2**30}]}, Cluster, NAME)
    return Problem(cluster, (model,), Workload(np.zeros(1), np.zeros(1, np.int32)))


def make_service(router: Router[Group]) -> Service:
    tokenizer = Tokenizer(Backend(WordLevel({"a": 0}, "a")), TextFiles({}, (), {}), NAME)
    model = ServedModel(name=NAME, kind="embed", tokenizer=tokenizer, max_positions=512, vocabulary=32_000, width=WIDTH)
    return Service(router=router, models={NAME: model}, settings=HttpSettings(log_requests=False))


async def main(port: int) -> None:
    warm_up()
    group = await start_group(GroupSpec(name="g", devices=("cpu:0",)), NoopLauncher())
    router: Router[Group] = Router(make_problem(), (GroupLost,))
    router.apply([LiveGroup(name="g", spec=PlanGroup(("n/0",), 1, 1, (NAME,)), handle=group, ready=(NAME,))])
    service = make_service(router)
    await HttpServer(make_app(service), "127.0.0.1", port, service.settings).run_until_signal()
    router.close()
    await group.stop()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    configure_logs("json")
    run(main(int(sys.argv[1])))
