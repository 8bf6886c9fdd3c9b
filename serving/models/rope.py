"""Rotary positions: the frequencies a config.json asks for, and the rotation of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """theta, and by how much and how positions are stretched."""

    head_size: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def frequencies(self) -> NDArray[np.float32]:
        """[head_size / 2] radians per position."""
        exponents = np.arange(0, self.head_size, 2, dtype=np.float32) / np.float32(self.head_size)
        plain: NDArray[np.float32] = (1.0 / np.power(np.float32(self.theta), exponents)).astype(np.float32)
        if self.kind == "linear":
            return plain / np.float32(self.factor)
        if self.kind == "llama3":
            return self._llama3(plain)
        return plain

    def _llama3(self, plain: NDArray[np.float32]) -> NDArray[np.float32]:
        """Long waves are stretched by the factor, short ones kept, those between blended."""
        wave = 2 * math.pi / plain
        share = (self.original_positions / wave - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        blended: NDArray[np.float32] = ((1 - share) * plain / self.factor + share * plain).astype(np.float32)
        return blended


class Rotation(NamedTuple):
    """Of each token of a step, [tokens, 1, head_size / 2]."""

    cos: Tensor
    sin: Tensor


def rope_from(data: Mapping[str, Any], head_size: int, where: str) -> Rope:
    """From `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""
    given = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise InputError(f"{where}: rope type {kind!r} is not served; served are default, linear, llama3")
    theta = given.get("rope_theta", data.get("rope_theta", 10000.0))
    return Rope(
        head_size=head_size,
        theta=float(theta),
        kind=kind,
        factor=float(given.get("factor", 1.0)),
        low_freq_factor=float(given.get("low_freq_factor", 1.0)),
        high_freq_factor=float(given.get("high_freq_factor", 4.0)),
        original_positions=int(given.get("original_max_position_embeddings", 8192)),
    )


def make_rotation(frequencies: Tensor, positions: Tensor) -> Rotation:
    angles = (positions.to(frequencies.dtype)[:, None] * frequencies)[:, None, :]
    return Rotation(angles.cos(), angles.sin())


def rotate(qkv: Tensor, heads: int, by: Rotation) -> Tensor:
    """qkv [tokens, heads, head_size] with its first `heads` turned: the first half of a head against the second."""
    import torch

    if is_plain(qkv) and qkv.is_contiguous():
        from serving.models import rows

        rows.rotate(qkv.numpy(), heads, by.cos[:, 0].numpy(), by.sin[:, 0].numpy())
        return qkv
    if qkv.is_cuda and qkv.is_contiguous() and not torch.is_grad_enabled():
        from serving.models import fused_rows

        return fused_rows.rotate(qkv, heads, by)
    turned, rest = qkv.split([heads, qkv.shape[1] - heads], dim=1)
    first, second = turned.float().chunk(2, dim=-1)
    parts = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    return torch.cat((torch.cat(parts, dim=-1).to(qkv.dtype), rest), dim=1)


def is_plain(x: Tensor) -> bool:
    """Whether compiled code may work on it: float32 on a CPU, and nobody will ask for gradients."""
    import torch

    return x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled()
