"""Which experts a token goes to, and how much each one's answer weighs: the top-k gates of all MoE families.

Pure functions of the router's scores; they know neither the experts nor where these live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe.gate_kernel import LEFT, choose

Scoring = Literal["softmax", "sigmoid"]

_TINY = 1e-20  # keeps sigmoids that are all zero from being divided by zero


@dataclass(frozen=True)
class Gate:
    """How scores become choices."""

    top_k: int
    """Experts that a token visits."""
    scoring: Scoring = "softmax"
    normalise: bool = True
    """Whether the weights of the chosen experts are made to sum to one."""
    scale: float = 1.0
    """What the weights are multiplied by in the end."""
    groups: int = 1
    """The experts in so many equal groups of neighbours ..."""
    top_groups: int = 1
    """... of which a token may visit so many, those that rank highest."""
    group_rank: Literal["best", "best-two"] = "best"
    """A group ranks by its best expert (DeepSeek-V2), or by the sum of its best two (V3)."""

    def __post_init__(self) -> None:
        assert self.top_k >= 1
        assert 1 <= self.top_groups <= self.groups

    @property
    def is_plain(self) -> bool:
        """The commonest, which compiled code knows; `scale` apart."""
        return self.scoring == "softmax" and self.normalise and self.groups == 1


class Routes(NamedTuple):
    """The choices of each token, best first, [tokens, top_k]; weights are float32."""

    experts: Tensor
    weights: Tensor


def route(scores: Tensor, gate: Gate, bias: Tensor | None = None) -> Routes:
    """scores [tokens, experts] as the router gives them; `bias` [experts] counts in the choice, not in the weights."""
    return _route_compiled(scores, gate) if bias is None and _is_common(scores, gate) else _route(scores, gate, bias)


def _is_common(scores: Tensor, gate: Gate) -> bool:
    """Whether compiled code may choose: the commonest gate, float32 on a CPU, and nobody will ask for gradients."""
    is_plain = scores.is_cpu and scores.dtype == torch.float32 and not torch.is_grad_enabled()
    return is_plain and gate.is_plain and gate.top_k <= scores.shape[1]


def _route_compiled(scores: Tensor, gate: Gate) -> Routes:
    """The tokens that are left go to torch, so that its choice among ties is everybody's."""
    shape = len(scores), gate.top_k
    chosen, shares = np.empty(shape, np.int64), np.empty(shape, np.float32)
    count = choose(scores.contiguous().numpy(), chosen, shares)
    experts, weights = torch.from_numpy(chosen), torch.from_numpy(shares)
    if count:
        is_left = experts[:, 0] == LEFT
        experts[is_left], weights[is_left] = _route(scores[is_left], Gate(gate.top_k), None)
    return Routes(experts, weights if gate.scale == 1.0 else weights * gate.scale)


def _route(scores: Tensor, gate: Gate, bias: Tensor | None) -> Routes:
    scores = scores.float()
    likes = scores.softmax(dim=-1) if gate.scoring == "softmax" else scores.sigmoid()
    ranks = likes if bias is None else likes + bias
    if gate.groups > 1:
        ranks = ranks.masked_fill(~allowed(ranks, gate), float("-inf"))
    if ranks is likes:
        weights, experts = likes.topk(gate.top_k, dim=-1)
    else:
        experts = ranks.topk(gate.top_k, dim=-1).indices
        weights = likes.gather(-1, experts)
    if gate.normalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _TINY)
    return Routes(experts, weights if gate.scale == 1.0 else weights * gate.scale)


def allowed(ranks: Tensor, gate: Gate) -> Tensor:
    """[tokens, experts]: whether an expert is in one of the groups that its token may visit."""
    tokens, experts = ranks.shape
    each = experts // gate.groups
    assert each * gate.groups == experts, f"{experts} experts do not make {gate.groups} equal groups"
    assert gate.top_k <= gate.top_groups * each, "fewer experts allowed than are to be chosen"
    inside = ranks.view(tokens, gate.groups, each)
    best = inside.amax(dim=-1) if gate.group_rank == "best" else inside.topk(min(2, each), dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(gate.top_groups, dim=-1).indices, True)
    return kept.repeat_interleave(each, dim=-1)
