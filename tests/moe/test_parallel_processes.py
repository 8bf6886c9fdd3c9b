"""Experts over real processes, through shared memory and through gloo: both ways give what one device gives."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from moe.expert_placement import ExpertPlacement
from moe.parallel.exchange import ExchangedExperts
from moe.parallel.places import Places
from moe.parallel.replicated import OwnPlaces
from tests.moe.test_parallel import device_experts, world
from tests.serving.parallel.processes import Rank, Ranks

PLACEMENT = ExpertPlacement.of_lists([[[0, 3, 4], [1, 0], [2, 0, 1]]])
"""Of three devices; experts 0 and 1 have replicas."""
TOKENS = 90


def both_ways(rank: Rank) -> list[float]:
    """The largest difference from one device, of each way."""
    tensor = rank.parallel.tensor
    places = Places(PLACEMENT.expert[0], PLACEMENT.start, 5, np.ones(3))
    found = []
    for seed in range(3):
        whole, x, routes, expected = world(PLACEMENT, TOKENS, 2, seed)
        held = device_experts(whole, PLACEMENT, tensor.rank)
        with torch.no_grad():
            y = held(x, OwnPlaces(places, tensor.rank)(routes.experts), routes.weights)
            tensor.all_reduce(y)
            found.append(float((y - expected).abs().max()))
            # The first has most of the tokens, the last none.
            mine = slice(*((0, 70), (70, TOKENS), (TOKENS, TOKENS))[tensor.rank])
            exchanged = ExchangedExperts(held, places, tensor)
            y = exchanged(x[mine], routes.experts[mine], routes.weights[mine])
            found.append(float((y - expected[mine]).abs().sum()))
    return found


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_three_processes_give_what_one_device_gives(backend):
    with tempfile.TemporaryDirectory() as place:
        rendezvous = Path(place) if backend == "shared" else f"file://{place}/store"
        with Ranks(both_ways, 3, 1, rendezvous, backend) as ranks:
            for found in ranks.hear_all():
                assert len(found) == 6
                assert max(found) < 1e-4
