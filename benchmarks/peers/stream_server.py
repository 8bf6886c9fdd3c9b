"""The endpoint with one generating model on a real worker: the worker on the first core, all else on the second.

python -m benchmarks.peers.stream_server PORT MODEL
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from placement.cluster import Cluster
from placement.files import convert
from placement.plan import Group as PlanGroup
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.workload import Workload
from router import LiveGroup, Router, warm_up
from serving.http import HttpServer, HttpSettings, ServedModel, Service, configure_logs, make_app
from serving.models import ModelConfig, read_config
from serving.text import Tokenizer
from serving.worker.event_loop import run
from serving.worker.group import Group, GroupLost, GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

NAME = "m"
CACHED_TOKENS = 2**14
SLO = Slo(ttft=60.0, tpot=10.0)


def make_problem(kv_bytes_per_token: int) -> Problem:
    generation = {"stages": [{"fixed": 0.01}], "kv_bytes_per_token": [kv_bytes_per_token]}
    shape = {"tp": 1, "pp": 1, "stage_memory": [1], "generation": generation}
    model = Model(NAME, convert({"shapes": [shape]}, Profile, NAME), SLO)
    cluster = convert({"nodes": [{"name": "n", "devices": 1, "memory": 2**33}]}, Cluster, NAME)
    return Problem(cluster, (model,), Workload(np.zeros(1), np.zeros(1, np.int32)))


def make_service(router: Router[Group], path: Path, config: ModelConfig) -> Service:
    model = ServedModel(
        name=NAME,
        kind="generate",
        tokenizer=Tokenizer.from_directory(path),
        max_positions=config.max_positions,
        vocabulary=config.sizes.vocabulary,
    )
    return Service(router=router, models={NAME: model}, settings=HttpSettings())


async def main(port: int, path: Path) -> None:
    config = read_config(path)
    kv_bytes_per_token = 2 * 4 * config.sizes.layers * config.sizes.hidden
    kv_bytes = kv_bytes_per_token * CACHED_TOKENS
    warm_up()
    group = await start_group(GroupSpec(name="g", devices=("cpu:0",)), LocalLauncher())
    await group.load(ModelSpec(name=NAME, path=str(path), kv_bytes=kv_bytes))
    os.sched_setaffinity(0, {1})
    router: Router[Group] = Router(make_problem(kv_bytes_per_token), (GroupLost,))
    spec = PlanGroup(("n/0",), 1, 1, (NAME,), {NAME: kv_bytes})
    router.apply([LiveGroup(name="g", spec=spec, handle=group, ready=(NAME,))])
    service = make_service(router, path, config)
    await HttpServer(make_app(service), "127.0.0.1", port, service.settings).run_until_signal()
    router.close()
    await group.stop()


if __name__ == "__main__":
    configure_logs("json")
    run(main(int(sys.argv[1]), Path(sys.argv[2])))
