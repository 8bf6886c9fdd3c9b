"""Small experts for the tests, and what they must compute, one choice at a time."""

import torch
import torch.nn.functional as F

from moe.experts import Experts


def make_experts(slots, hidden, ffn, gated=True, activation="silu", random=None):
    experts = Experts(slots, hidden, ffn, gated, activation)
    with torch.no_grad():
        for weight in (experts.up, experts.down):
            weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=random)
    return experts


def answer(experts, slot, row):
    """What one expert says to one token."""
    up, down = experts.up[slot], experts.down[slot]
    wide = up @ row
    kinds = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    active = kinds[experts.activation](wide[: down.shape[1]])
    return down @ (active * wide[down.shape[1] :] if experts.gated else active)


def plain_sum(experts, x, places, weights):
    y = torch.zeros_like(x)
    for token, row in enumerate(x):
        for place, weight in zip(places[token].tolist(), weights[token], strict=True):
            if place >= 0:
                y[token] += weight * answer(experts, place, row)
    return y
