"""Which devices of a cluster are on this machine, and which shapes a model can have on them. Imports no torch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from placement.cluster import Cluster
from placement.costs.transformer import TransformerConfig
from placement.profile import Shape

ALL_SHAPES = 8
"""Up to so many devices every shape is tried; beyond, powers of two."""
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_AMD = Path("/sys/class/kfd/kfd/topology/nodes")
"""A folder each for processors and GPUs."""
_SHOWN_BY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The last two are AMD's, which goes by the first as well."""


@dataclass(frozen=True)
class Present:
    """The devices of one kind: what the cluster has, and how many of them this machine can measure on."""

    kind: str
    device: Literal["cpu", "cuda"]
    count: int
    """On this machine."""
    total: int
    """In the cluster."""
    node_devices: int
    """On the largest node."""
    nodes: int
    memory_bytes: int
    """What models may use on the smallest of them."""

    @property
    def names(self) -> list[str]:
        """As workers call them."""
        return [f"{self.device}:{number}" for number in range(self.count)]


def find_present(cluster: Cluster) -> list[Present]:
    """For each kind of device in the cluster; `count` is 0 where this machine has none of it."""
    found = []
    for kind in dict.fromkeys(node.kind for node in cluster.nodes if node.devices):
        nodes = [node for node in cluster.nodes if node.kind == kind and node.devices]
        total, gpus = sum(node.devices for node in nodes), count_gpus()
        is_cpu = kind.lower().startswith("cpu") or (kind == "any" and not gpus)
        here = count_cores() if is_cpu else gpus
        found.append(
            Present(
                kind=kind,
                device="cpu" if is_cpu else "cuda",
                count=min(here, total),
                total=total,
                node_devices=max(node.devices for node in nodes),
                nodes=len(nodes),
                memory_bytes=min(int(node.memory) for node in nodes),
            )
        )
    return found


def measured_shapes(sizes: TransformerConfig, devices: int) -> list[Shape]:
    """All shapes of a model that can be measured on so many devices."""
    return [shape for shape in _shapes(devices) if sizes.why_not(*shape) is None]


def further_shapes(sizes: TransformerConfig, devices: int, total: int) -> list[Shape]:
    """Those that only the whole cluster has devices for."""
    known = set(_shapes(devices))
    return [shape for shape in _shapes(total) if shape not in known and sizes.why_not(*shape) is None]


def machine_facts(device: str) -> dict[str, str]:
    """What makes this machine's times its own."""
    return {
        "device": _processor() if device == "cpu" else _gpu(),
        "torch": _version("torch"),
        "numba": _version("numba"),
        "python": platform.python_version(),
    }


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus() -> int:
    """Those that the environment shows, of those that a driver has."""
    nvidia = _entries(_NVIDIA)
    lists = [os.environ[name] for name in (_SHOWN_BY[:1] if nvidia else _SHOWN_BY) if name in os.environ]
    shown = (len([name for name in one.split(",") if name.strip()]) for one in lists)
    return min((len(nvidia or _amd_gpus()), *shown))


def _shapes(devices: int) -> list[Shape]:
    sizes = range(1, devices + 1)
    return [
        Shape(tp, pp)
        for tp in sizes
        for pp in sizes
        if tp * pp <= devices and (tp * pp <= ALL_SHAPES or (_is_power(tp) and _is_power(pp)))
    ]


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


def _processor() -> str:
    return _line(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _gpu() -> str:
    nvidia, amd = _entries(_NVIDIA), _amd_gpus()
    if nvidia:
        return _line(nvidia[0] / "information", "Model")
    return f"AMD {_gfx(_number(amd[0], 'gfx_target_version'))}" if amd else ""


def _amd_gpus() -> list[Path]:
    """Those that torch here is built for: the kernel has them in any desktop. Processors have no units of vectors, and
    what this process may not use cannot be read.
    """
    return [node for node in _entries(_AMD) if _number(node, "simd_count")] if _has_hip() else []


def _has_hip() -> bool:
    torch = find_spec("torch")
    return torch is not None and (Path(torch.origin or "").parent / "lib" / "libtorch_hip.so").exists()


def _number(node: Path, name: str) -> int:
    found = _line(node / "properties", f"{name} ", " ")
    return int(found) if found.isdigit() else 0


def _gfx(version: int) -> str:
    """90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _line(path: Path, key: str, mark: str = ":") -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(mark)[2].strip() for line in lines if line.startswith(key)), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
