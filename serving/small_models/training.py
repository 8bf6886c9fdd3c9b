"""The training loop: a fixed number of steps of AdamW. Knows neither the model nor what its loss means.

Steps, not time, end it, and all chance comes from generators handed in: the same seed gives the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

OnStep = Callable[[int, int, float], None]
"""(steps done, steps in all, loss of the last)"""


@dataclass(frozen=True)
class Schedule:
    """The learning rate rises over the first steps to `peak` and falls as a half cosine to zero."""

    steps: int
    peak: float
    warmup_share: float = 0.08

    def rate(self, step: int) -> float:
        warmup = max(1, round(self.steps * self.warmup_share))
        if step < warmup:
            return self.peak * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return self.peak * 0.5 * (1 + math.cos(math.pi * progress))


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    schedule: Schedule,
    on_step: OnStep = lambda done, steps, loss: None,
    weight_decay: float = 0.1,
) -> list[float]:
    """Make the schedule's steps, each on `loss_of(step)`; the losses, in order."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=schedule.peak, betas=(0.9, 0.99), fused=True)
    model.train()
    losses = []
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        on_step(step + 1, schedule.steps, losses[-1])
    model.eval()
    return losses


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over several threads come out differently on another number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
