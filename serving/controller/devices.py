"""The plan's devices as workers call them: which core or GPU of this machine each is."""

from __future__ import annotations

from collections import Counter

from placement.cluster import Cluster
from placement.errors import InputError
from serving.config import WorkersConfig
from serving.profiler.present import count_cores, count_gpus, find_present


def worker_devices(cluster: Cluster, workers: WorkersConfig) -> dict[str, str]:
    """node/number -> cpu:N or cuda:N. Only stand-ins may be more than the machine has."""
    device_of = {present.kind: present.device for present in find_present(cluster)}
    numbers: Counter[str] = Counter()
    names = {}
    for device in cluster.devices:
        what = device_of[device.kind]
        names[device.name] = f"{what}:{numbers[what]}"
        numbers[what] += 1
    have = {"cpu": count_cores(), "cuda": count_gpus()}
    for kind, wanted in numbers.items():
        if workers.kind == "real" and wanted > have[kind]:
            things = "cores" if kind == "cpu" else "GPUs"
            raise InputError(
                f"cluster: {wanted} devices, but this machine has {have[kind]} {things}; name fewer, or set "
                "workers: {kind: paced} for real workers that share them, slowed down"
            )
    return names
