"""Training with experts spread over devices (Lina): what shares the links is put in order, and hidden in computation.

wire       one operation at a time, in the same order on every rank; gradients yield to tokens
packing    how many experts a device holds, so that fewer tokens travel
exchange   rows to other devices and back, with gradients, while the caller goes on
experts    the experts of all devices for one device's tokens, in micro-batches
gradients  averaged over devices in equal chunks, while the backward pass goes on
parallel   all of it around one model
"""

from __future__ import annotations

from moe.training.experts import ParallelExperts
from moe.training.groups import Group, Groups, connect
from moe.training.packing import Costs, Packing, choose_packing
from moe.training.parallel import ExpertParallel
from moe.training.wire import Stream, Ticket, Wire, WireBroken

__all__ = [
    "Costs",
    "ExpertParallel",
    "Group",
    "Groups",
    "Packing",
    "ParallelExperts",
    "Stream",
    "Ticket",
    "Wire",
    "WireBroken",
    "choose_packing",
    "connect",
]
