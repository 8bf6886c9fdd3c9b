"""Whose machines workers run on: this one alone, or those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placement.errors import InputError

if TYPE_CHECKING:
    from serving.config import ServeConfig
    from serving.machines.ray_cluster import RayCluster

LAUNCHERS = ("local", "ray")


@dataclass(frozen=True)
class Machines:
    """`address` of a Ray cluster's head; this machine's cluster when absent."""

    launcher: Literal["local", "ray"] = "local"
    address: str | None = None


LOCAL = Machines()


def make_machines(launcher: str, address: str | None) -> Machines:
    """From the options of a command."""
    if launcher not in LAUNCHERS:
        raise InputError(f"--launcher {launcher!r}: give {' or '.join(LAUNCHERS)}")
    if launcher == "local" and address is not None:
        raise InputError("--address is of a Ray cluster; give --launcher ray with it")
    return Machines("ray" if launcher == "ray" else "local", address)


async def join_ray(machines: Machines, config: ServeConfig, sources: Mapping[str, str]) -> RayCluster:
    """The cluster, its nodes as the configuration's kinds of devices; workers' lines go to the log. `sources`: where
    nodes get models from that they lack."""
    from serving.http import get_log
    from serving.machines.ray_cluster import connect_ray

    if config.workers.kind == "emulated":
        raise InputError("workers: emulated ones need no machines; leave --launcher ray away, or name real or paced")
    log = get_log("worker")
    return await connect_ray(
        machines.address, config.cluster, lambda name, node, line: log.info(line, worker=name, node=node), sources
    )
