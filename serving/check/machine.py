"""The machine as a bug report needs it: devices, memory, driver and library versions."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moe.kernels.tiles import architecture_of
from serving.check.results import Finding, judged
from serving.profiler.present import count_cores, machine_facts

PACKAGES = (
    "penstock", "torch", "triton", "numba", "numpy", "safetensors", "tokenizers", "uvloop", "msgspec", "ray", "vllm",
)  # fmt: skip
MODULES = Path("/sys/module")
MOST_CORES = 8
"""That are used where there is no GPU: a process with torch is started for each."""


def look_at_machine() -> dict[str, Any]:
    import torch

    gpus = [_gpu(number) for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": machine_facts("cpu")["device"],
        "cores": count_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": gpus,
        "driver": {
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "nvidia": _driver("nvidia"),
            "amdgpu": _driver("amdgpu"),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
        },
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def check_machine(machine: dict[str, Any]) -> list[Finding]:
    """One line a kind of device."""
    found = [
        judged(
            "machine",
            machine["processor"] or "processor",
            machine["cores"] > 0,
            "" if machine["gpus"] or machine["cores"] <= MOST_CORES else f"{MOST_CORES} of the cores are used",
            cores=machine["cores"],
            memory_GiB=round(machine["memory_bytes"] / 2**30, 1),
        )
    ]
    found += [
        judged("machine", f"cuda:{number} {one['name']}", True, memory_GiB=round(one["memory_bytes"] / 2**30, 1))
        for number, one in enumerate(machine["gpus"])
    ]
    packages = machine["packages"]
    needed = ("torch", "numba", "safetensors", "tokenizers", "msgspec")
    missing = [name for name in needed if name not in packages]
    shown = {name: packages[name] for name in ("torch", "triton", "numba") if name in packages}
    found.append(judged("machine", "libraries", not missing, f"missing: {missing}" if missing else "", **shown))
    return found


def devices_here(machine: dict[str, Any]) -> list[str]:
    """As workers call them: GPUs where there are any, else some cores."""
    if machine["gpus"]:
        return [f"cuda:{number}" for number in range(len(machine["gpus"]))]
    return [f"cpu:{number}" for number in range(min(machine["cores"], MOST_CORES))]


def _gpu(number: int) -> dict[str, Any]:
    import torch

    facts = torch.cuda.get_device_properties(number)
    return {
        "name": facts.name,
        "memory_bytes": facts.total_memory,
        "processors": facts.multi_processor_count,
        "architecture": architecture_of(facts, torch.version.hip is not None),
    }


def _memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _driver(module: str) -> str | None:
    """The kernel module's version; AMD's has one where it is not the kernel's own."""
    try:
        return (MODULES / module / "version").read_text().strip()
    except OSError:
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
