"""What training adds to its loss so that tokens spread over the experts. Pure functions of scores and choices."""

from __future__ import annotations

import torch
from torch import Tensor

from moe.gate import Scoring


def balance_loss(scores: Tensor, experts: Tensor, scoring: Scoring = "softmax") -> Tensor:
    """Experts x sum over experts of (share of the choices x mean share of the likes): 1 when even, `experts` when all
    tokens go to one (Switch Transformers, eq. 4; for sigmoids, likes are first made to sum to one as in DeepSeek-V3).

    scores [tokens, experts] as the router gives them, experts [tokens, top_k] as chosen. Only the likes are learnt
    from: choices have no gradient.
    """
    count = scores.shape[-1]
    scores = scores.float()
    likes = scores.softmax(dim=-1) if scoring == "softmax" else scores.sigmoid()
    if scoring == "sigmoid":
        likes = likes / likes.sum(dim=-1, keepdim=True)
    chosen = torch.bincount(experts.flatten(), minlength=count).to(likes.dtype) / experts.numel()
    return count * (chosen * likes.mean(dim=0)).sum()


def score_loss(scores: Tensor) -> Tensor:
    """The mean square of log(sum(exp(scores))): keeps scores small enough for low precision (ST-MoE's z-loss)."""
    return scores.float().logsumexp(dim=-1).square().mean()


def corrected_bias(bias: Tensor, counts: Tensor, speed: float) -> Tensor:
    """The bias [experts] of the choice after a step: up by `speed` for experts with fewer than the mean of counts
    [experts], down for those with more (DeepSeek-V3's balancing without a loss)."""
    counts = counts.to(bias.dtype)
    return bias + speed * (counts.mean() - counts).sign()
