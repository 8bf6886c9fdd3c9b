"""A worker's device by name: `cpu:N` (the Nth core this process may use) or `cuda:N`. Imports no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast

from placement.errors import InputError

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

_NAME = re.compile(r"(cpu|cuda):([0-9]{1,4})")


class DeviceName(NamedTuple):
    kind: Literal["cpu", "cuda"]
    number: int


def parse_device(text: str) -> DeviceName:
    match = _NAME.fullmatch(text)
    if match is None:
        raise InputError(f"device {text!r}: give cpu:N or cuda:N")
    return DeviceName(cast(Literal["cpu", "cuda"], match[1]), int(match[2]))


def pin(device: str) -> int | None:
    """Keep this thread, and those it starts later, on the core of `cpu:N`; returns the core, None for a GPU.

    To be called before anything starts threads. Past the last core it begins again at the first.
    """
    kind, number = parse_device(device)
    if kind != "cpu" or not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    core = cores[number % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def pin_all(devices: Sequence[str]) -> None:
    """Keep this process, and those it starts, on the cores of all of these devices; of GPUs, nothing is asked."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    wanted = {cores[name.number % len(cores)] for name in map(parse_device, devices) if name.kind == "cpu" and cores}
    if wanted:
        os.sched_setaffinity(0, wanted)


def devices_environment(devices: Sequence[str], outer: Mapping[str, str]) -> dict[str, str]:
    """The variables by which one process sees all of these."""
    each = [device_environment(device, outer) for device in devices]
    seen = ",".join(one["CUDA_VISIBLE_DEVICES"] for one in each if one["CUDA_VISIBLE_DEVICES"])
    return each[0] | {"CUDA_VISIBLE_DEVICES": seen}


def device_environment(device: str, outer: Mapping[str, str]) -> dict[str, str]:
    """The variables by which libraries see this device alone; `outer` may already show only some GPUs."""
    kind, number = parse_device(device)
    if kind == "cpu":
        return dict.fromkeys(THREAD_VARIABLES, "1") | {"CUDA_VISIBLE_DEVICES": ""}
    seen = outer.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return {"CUDA_VISIBLE_DEVICES": str(number), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    names = [name.strip() for name in seen.split(",") if name.strip()]
    if number >= len(names):
        raise InputError(f"device {device!r}: CUDA_VISIBLE_DEVICES={seen!r} shows {len(names)} of them")
    return {"CUDA_VISIBLE_DEVICES": names[number]}
