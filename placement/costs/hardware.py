"""What device kinds can do: peaks from the vendors' datasheets, and what share of them we assume is reached.

Used to compute profiles where none were measured; `penstock profile` measures and needs none of it. Knows
nothing of models or of a particular cluster.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Literal

import msgspec

from placement.errors import InputError
from placement.units import Bytes

Dtype = Literal["fp16", "bf16", "fp32"]
DTYPE_BYTES = MappingProxyType({"fp16": 2, "bf16": 2, "fp32": 4})


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way between two devices: bytes per second in one direction, seconds until the first byte arrives."""

    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        _check_positive("link bytes_per_s", self.bytes_per_s)
        _check_positive("link latency_s", self.latency_s)


class Assumed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ASSUMPTIONS, on no datasheet: the share of each peak that good serving code reaches, its fixed cost."""

    matmul_efficiency: float = 0.5
    attention_efficiency: float = 0.3
    memory_efficiency: float = 0.8
    link_efficiency: float = 0.7
    kernel_s: float = 4e-6
    """Seconds a kernel takes beyond its work: launch, first wave, tail."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _check_positive(f"assumed {field}", getattr(self, field))
            if field.endswith("_efficiency") and getattr(self, field) > 1:
                raise ValueError(f"assumed {field} is {getattr(self, field)}; a share is at most 1")


class DeviceKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of device, in the node it usually comes in. Peaks are dense: no sparsity doubling."""

    name: str
    memory_bytes: Bytes
    """All of it, a datasheet's GB taken as 10^9: the rest is about what driver and context hold."""
    memory_bytes_per_s: float
    node_link: Link
    """Between devices of one node, peak of one direction."""
    network: Link
    """Between two nodes, peak of a whole node in one direction: devices of a node share it."""
    fp32_flops_per_s: float
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    assumed: Assumed = msgspec.field(default_factory=Assumed)
    source: str = ""
    """Where the peaks come from: the device's datasheet, the usual node's network."""

    def __post_init__(self) -> None:
        _check_positive(f"{self.name}: memory_bytes", self.memory_bytes)
        _check_positive(f"{self.name}: memory_bytes_per_s", self.memory_bytes_per_s)
        for dtype, peak in self._peaks().items():
            _check_positive(f"{self.name}: {dtype}_flops_per_s", peak)

    def peak_flops_per_s(self, dtype: str) -> float:
        peaks = self._peaks()
        if dtype not in peaks:
            raise InputError(f"device kind {self.name} has no {dtype}; it computes in {' or '.join(peaks)}")
        return peaks[dtype]

    def _peaks(self) -> dict[str, float]:
        peaks = {"fp16": self.fp16_flops_per_s, "bf16": self.bf16_flops_per_s, "fp32": self.fp32_flops_per_s}
        return {dtype: peak for dtype, peak in peaks.items() if peak is not None}


def device_kind(name: str) -> DeviceKind:
    """The row of this name; its letters may be of either case."""
    if name.lower() not in KINDS:
        raise InputError(f"device kind {name!r} is not in the table; known are {', '.join(sorted(KINDS))}")
    return KINDS[name.lower()]


def _check_positive(what: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what} is {value}; it must be a finite number above 0")


_GBIT = 1e9 / 8
# Latencies of links are assumptions too: what one step of a ring costs in NCCL (gloo for cpu), roughly.
_PCIE3 = Link(15.75e9, 5e-6)
_PCIE4 = Link(31.5e9, 5e-6)

_ROWS = (
    DeviceKind(
        name="v100",
        memory_bytes=Bytes(16e9),
        memory_bytes_per_s=900e9,
        node_link=Link(150e9, 3e-6),
        network=Link(25 * _GBIT, 30e-6),
        fp32_flops_per_s=15.7e12,
        fp16_flops_per_s=125e12,
        source="NVIDIA V100 datasheet, SXM2 16 GB (NVLink 300 GB/s both ways); AWS p3.16xlarge, 25 Gbit/s",
    ),
    DeviceKind(
        name="t4",
        memory_bytes=Bytes(16e9),
        memory_bytes_per_s=320e9,
        node_link=_PCIE3,
        network=Link(50 * _GBIT, 30e-6),
        fp32_flops_per_s=8.1e12,
        fp16_flops_per_s=65e12,
        source="NVIDIA T4 datasheet (PCIe 3.0 x16); AWS g4dn.12xlarge, 50 Gbit/s",
    ),
    DeviceKind(
        name="a100",
        memory_bytes=Bytes(40e9),
        memory_bytes_per_s=1555e9,
        node_link=Link(300e9, 2e-6),
        network=Link(400 * _GBIT, 20e-6),
        fp32_flops_per_s=19.5e12,
        fp16_flops_per_s=312e12,
        bf16_flops_per_s=312e12,
        source="NVIDIA A100 datasheet, SXM4 40 GB (NVLink 600 GB/s both ways); AWS p4d.24xlarge, 400 Gbit/s",
    ),
    DeviceKind(
        name="a100-80gb",
        memory_bytes=Bytes(80e9),
        memory_bytes_per_s=2039e9,
        node_link=Link(300e9, 2e-6),
        network=Link(400 * _GBIT, 20e-6),
        fp32_flops_per_s=19.5e12,
        fp16_flops_per_s=312e12,
        bf16_flops_per_s=312e12,
        source="NVIDIA A100 datasheet, SXM4 80 GB (NVLink 600 GB/s both ways); AWS p4de.24xlarge, 400 Gbit/s",
    ),
    DeviceKind(
        name="l4",
        memory_bytes=Bytes(24e9),
        memory_bytes_per_s=300e9,
        node_link=_PCIE4,
        network=Link(100 * _GBIT, 30e-6),
        fp32_flops_per_s=30.3e12,
        fp16_flops_per_s=121e12,
        bf16_flops_per_s=121e12,
        source="NVIDIA L4 datasheet (242 TFLOP/s with sparsity; PCIe 4.0 x16); AWS g6.48xlarge, 100 Gbit/s",
    ),
    DeviceKind(
        name="h100",
        memory_bytes=Bytes(80e9),
        memory_bytes_per_s=3350e9,
        node_link=Link(450e9, 2e-6),
        network=Link(3200 * _GBIT, 20e-6),
        fp32_flops_per_s=67e12,
        fp16_flops_per_s=989e12,
        bf16_flops_per_s=989e12,
        source="NVIDIA H100 datasheet, SXM5 (1979 TFLOP/s with sparsity, NVLink 900 GB/s both ways); AWS p5",
    ),
    DeviceKind(
        name="cpu",
        memory_bytes=Bytes(4e9),
        memory_bytes_per_s=10e9,
        node_link=Link(5e9, 50e-6),
        network=Link(10 * _GBIT, 100e-6),
        fp32_flops_per_s=96e9,
        assumed=Assumed(matmul_efficiency=0.6, kernel_s=15e-6),
        source="no datasheet: a 3 GHz core with two 256-bit FMA units (32 FLOP a cycle) and its part of DDR4",
    ),
)
KINDS = MappingProxyType({row.name: row for row in _ROWS})
