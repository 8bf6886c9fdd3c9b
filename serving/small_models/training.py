"""The training loop: a fixed number of steps of AdamW. Knows neither the model nor what its loss means.

Steps, not time, end it, and all chance comes from generators handed in: the same seed gives the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WEIGHT_DECAY = 0.1
TABLE_SPEED = 8.0
"""Learning rate of the tables of tokens, times that of the rest."""
_TABLES = ("embedding", "head")

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
) -> list[float]:
    """Make the schedule's steps, each on `loss_of(step)`; the losses, in order."""
    optimizer = torch.optim.AdamW(_groups(model), lr=schedule.peak, betas=(0.9, 0.99), fused=True)
    model.train()
    losses = []
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step) * group["speed"]
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        on_step(step + 1, schedule.steps, losses[-1])
    model.eval()
    return losses


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Rows of a table of tokens are rarely asked, so they learn faster; only matrices decay."""
    named = dict(model.named_parameters())
    tables = {name for name in named if name.split(".")[0] in _TABLES}
    matrices = {name for name, parameter in named.items() if parameter.dim() > 1} - tables
    kinds = ((tables, TABLE_SPEED, 0.0), (matrices, 1.0, WEIGHT_DECAY), (named.keys() - tables - matrices, 1.0, 0.0))
    return [
        {"params": [named[name] for name in sorted(names)], "speed": speed, "weight_decay": decay}
        for names, speed, decay in kinds
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over several threads come out differently on another number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
