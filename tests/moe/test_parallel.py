"""Experts over several devices give what one device gives, for any placement, replication and share of tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.expert_placement import ExpertPlacement
from moe.experts import Experts
from moe.gate import Gate, route
from moe.parallel.exchange import ExchangedExperts
from moe.parallel.places import Places
from moe.parallel.replicated import OwnPlaces
from moe.split import Splitter
from tests.moe.threads import together
from tests.moe.worlds import make_experts, plain_sum

HIDDEN, FFN = 12, 8


@st.composite
def placements(draw):
    """[device][expert ids] with every expert somewhere, some often, some devices without any."""
    experts, devices = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    homes = [draw(st.integers(0, devices - 1)) for _ in range(experts)]
    lists = [[expert for expert in range(experts) if homes[expert] == device] for device in range(devices)]
    for held in lists:
        more = draw(st.lists(st.integers(0, experts - 1), max_size=3, unique=True))
        held += [expert for expert in more if expert not in held]
    order = [draw(st.permutations(held)) for held in lists]
    return ExpertPlacement.of_lists([order])


def make_places(placement, balanced):
    speed = np.ones(placement.devices) if balanced else None
    return Places(placement.expert[0], placement.start, placement.experts, speed)


def device_experts(whole, placement, device):
    """The slots of one device, with weights; an empty slot holds what nobody may ask."""
    slots = placement.expert[0, placement.start[device] : placement.start[device + 1]].tolist()
    held = Experts(len(slots), HIDDEN, FFN)
    with torch.no_grad():
        for name in ("up", "down"):
            parts = [getattr(whole, name)[expert] if expert >= 0 else torch.nan for expert in slots]
            for slot, part in enumerate(parts):
                getattr(held, name)[slot] = part
    return held


def world(placement, tokens, top_k, seed):
    random = torch.Generator().manual_seed(seed)
    whole = make_experts(placement.experts, HIDDEN, FFN, random=random)
    x = torch.randn(tokens, HIDDEN, generator=random)
    # Popular experts first.
    scores = torch.randn(tokens, placement.experts, generator=random) - torch.arange(placement.experts)
    routes = route(scores, Gate(min(top_k, placement.experts)))
    with torch.no_grad():
        return whole, x, routes, plain_sum(whole, x, routes.experts, routes.weights)


WORLDS = (placements(), st.integers(0, 40), st.integers(1, 3), st.booleans(), st.integers(0, 2**20))


@settings(deadline=None, max_examples=60)
@given(*WORLDS)
def test_every_choice_has_one_slot_with_its_expert(placement, tokens, top_k, balanced, seed):
    _, _, routes, _ = world(placement, tokens, top_k, seed)
    places = make_places(placement, balanced)
    slots = places.assign(routes.experts)
    assert torch.equal(torch.from_numpy(placement.expert[0])[slots], routes.experts)
    local = torch.stack([OwnPlaces(places, device)(routes.experts) for device in range(placement.devices)])
    assert bool(((local >= 0).sum(dim=0) == 1).all())
    for device, row in enumerate(local):
        starts = torch.full_like(row, int(placement.start[device]))
        assert torch.equal(torch.where(row >= 0, row + starts, slots), slots)
    taken = np.bincount(slots.flatten(), minlength=len(placement.expert[0]))
    asked = np.bincount(routes.experts.flatten(), minlength=placement.experts)
    if balanced:
        assert taken.tolist() == Splitter(placement, np.ones(placement.devices)).split_layer(0, asked).tolist()
    else:
        for expert in range(placement.experts):
            shares = taken[placement.expert[0] == expert]
            assert shares.sum() == asked[expert]
            assert shares.max() - shares.min() <= 1


@settings(deadline=None, max_examples=40)
@given(*WORLDS)
def test_devices_with_all_tokens_add_up_to_one(placement, tokens, top_k, balanced, seed):
    whole, x, routes, expected = world(placement, tokens, top_k, seed)
    total = torch.zeros_like(x)
    with torch.no_grad():
        for device in range(placement.devices):
            places = OwnPlaces(make_places(placement, balanced), device)
            held = device_experts(whole, placement, device)
            total += held(x, places(routes.experts), routes.weights)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(*WORLDS, st.data())
def test_tokens_that_travel_come_back_with_the_same_answers(placement, tokens, top_k, balanced, seed, data):
    """Each device has a share of the tokens, perhaps none."""
    whole, x, routes, expected = world(placement, tokens, top_k, seed)
    edges = sorted(data.draw(st.integers(0, tokens)) for _ in range(placement.devices - 1))
    edges = [0, *edges, tokens]
    seen = [0] * placement.devices

    def part(exchange):
        mine = slice(edges[exchange.rank], edges[exchange.rank + 1])
        held = device_experts(whole, placement, exchange.rank)

        def compute(rows, places, weights):
            seen[exchange.rank] = int((places >= 0).sum())
            return held(rows, places, weights)

        experts = ExchangedExperts(compute, make_places(placement, balanced), exchange)
        with torch.no_grad():
            return experts(x[mine], routes.experts[mine], routes.weights[mine])

    found = torch.cat(together(placement.devices, part))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    if balanced:
        asked = np.bincount(routes.experts.flatten(), minlength=placement.experts)
        quotas = Splitter(placement, np.ones(placement.devices)).split_layer(0, asked)
        assert seen == [int(part.sum()) for part in np.split(quotas, placement.start[1:-1])]


def test_an_expert_that_lives_nowhere_is_refused():
    with pytest.raises(AssertionError, match="lives nowhere"):
        Places(np.array([0, 0]), np.array([0, 2]), 2)
