"""Gates against their plain definitions, token by token; and what training adds to the loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.balance_loss import balance_loss, corrected_bias, score_loss
from moe.gate import Gate, route


@st.composite
def gated_scores(draw):
    """A gate, scores [tokens, experts] that have no ties, and a bias or none."""
    groups = draw(st.sampled_from([1, 2, 4]))
    each = draw(st.integers(1, 4))
    top_groups = draw(st.integers(1, groups))
    gate = Gate(
        top_k=draw(st.integers(1, top_groups * each)),
        scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
        normalise=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        top_groups=top_groups,
        group_rank=draw(st.sampled_from(["best", "best-two"])),
    )
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randn(draw(st.integers(1, 5)), groups * each, generator=random, dtype=torch.float64)
    bias = torch.randn(groups * each, generator=random, dtype=torch.float64) if draw(st.booleans()) else None
    return gate, scores, bias


def plain(gate, scores, bias):
    """One token's experts, best first, and their weights."""
    if gate.scoring == "softmax":
        total = sum(math.exp(score) for score in scores)
        likes = [math.exp(score) / total for score in scores]
    else:
        likes = [1 / (1 + math.exp(-score)) for score in scores]
    ranks = [like + more for like, more in zip(likes, bias or [0.0] * len(likes), strict=True)]
    each = len(ranks) // gate.groups
    best = 1 if gate.group_rank == "best" else 2
    worth = [sum(sorted(ranks[n * each : (n + 1) * each])[-best:]) for n in range(gate.groups)]
    kept = sorted(range(gate.groups), key=lambda n: -worth[n])[: gate.top_groups]
    may = [expert for expert in range(len(ranks)) if expert // each in kept]
    chosen = sorted(may, key=lambda expert: -ranks[expert])[: gate.top_k]
    total = sum(likes[expert] for expert in chosen) if gate.normalise else 1.0
    return chosen, [likes[expert] / total * gate.scale for expert in chosen]


@settings(deadline=None)
@given(gated_scores())
def test_any_gate_is_its_definition(world):
    gate, scores, bias = world
    experts, weights = route(scores, gate, bias)
    assert weights.dtype == torch.float32
    for token, row in enumerate(scores.tolist()):
        chosen, shares = plain(gate, row, None if bias is None else bias.tolist())
        assert experts[token].tolist() == chosen
        assert weights[token].tolist() == pytest.approx(shares, rel=1e-4)


VALUES = st.floats(-200, 200, width=32) | st.sampled_from(
    [0.0, 1.0, 1.000001, 1e30, -1e30, math.inf, -math.inf, math.nan]
)


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 9), st.data())
def test_compiled_it_is_torchs_with_its_choice_among_ties(experts, data):
    rows = data.draw(st.lists(st.lists(VALUES, min_size=experts, max_size=experts), min_size=1, max_size=4))
    scores, gate = torch.tensor(rows), Gate(data.draw(st.integers(1, experts)), scale=2.5)
    torchs = route(scores, gate)
    with torch.inference_mode():
        ours = route(scores, gate)
        assert torch.equal(ours.experts, torchs.experts)
        torch.testing.assert_close(ours.weights, torchs.weights, atol=2.5e-6, rtol=0, equal_nan=True)
        for token in range(len(rows)):
            alone = route(scores[token : token + 1], gate)
            assert torch.equal(alone.weights[0].view(torch.int32), ours.weights[token].view(torch.int32))


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (16, 2), (64, 6), (128, 8)])
def test_compiled_it_is_torchs_for_many_tokens(experts, top_k):
    """Scores coarse enough that every fourth token or so has a tie, as those after a collapse have."""
    scores = torch.randn(2000, experts, generator=torch.Generator().manual_seed(0)).mul(200).round() / 200
    torchs = route(scores, Gate(top_k))
    with torch.inference_mode():
        ours = route(scores, Gate(top_k))
    assert torch.equal(ours.experts, torchs.experts)
    torch.testing.assert_close(ours.weights, torchs.weights, atol=1e-6, rtol=0)


def test_scores_that_are_part_of_longer_rows():
    scores = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))[:, :6]
    with torch.inference_mode():
        assert torch.equal(route(scores, Gate(2)).experts, scores.topk(2).indices)


def test_mixtral_by_hand():
    """Softmax over all, then the chosen made to sum to one: the same as a softmax over the chosen."""
    scores = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    experts, weights = route(scores, Gate(2))
    assert experts.tolist() == [[1, 2]]
    assert weights[0].tolist() == pytest.approx(torch.tensor([3.0, 2.0]).softmax(0).tolist())


def test_a_bias_moves_the_choice_and_not_the_weight():
    scores = torch.tensor([[0.0, 1.0, 2.0]])
    gate = Gate(1, "sigmoid", normalise=False)
    experts, weights = route(scores, gate, torch.tensor([9.0, 0.0, 0.0]))
    assert experts.tolist() == [[0]]
    assert weights.tolist() == [[0.5]]


def test_sigmoids_that_are_all_zero_weigh_nothing():
    assert route(torch.full((1, 4), -1000.0), Gate(2, "sigmoid")).weights.tolist() == [[0.0, 0.0]]


def test_scores_learn_from_the_weights():
    scores = torch.randn(3, 8, requires_grad=True)
    route(scores, Gate(2, "sigmoid", groups=2, top_groups=1)).weights.square().sum().backward()
    assert bool((scores.grad != 0).any(dim=1).all())


@pytest.mark.parametrize(("gate", "experts"), [(Gate(2, groups=3, top_groups=1), 8), (Gate(3, groups=4), 8)])
def test_groups_that_cannot_be_are_refused(gate, experts):
    with pytest.raises(AssertionError):
        route(torch.zeros(1, experts), gate)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_the_loss_is_one_when_even_and_grows_to_the_experts(scoring):
    even = 50.0 * (2 * torch.eye(8) - 1).repeat(4, 1)
    collapsed = even[:1].repeat(32, 1)
    for scores, expected in ((even, 1), (collapsed, 8)):
        experts = route(scores, Gate(1, scoring)).experts
        assert balance_loss(scores, experts, scoring).item() == pytest.approx(expected, abs=1e-3)


def test_the_loss_pushes_away_from_the_crowded():
    scores = (torch.tensor([[2.0, 0.0, 0.0]]).repeat(4, 1)).requires_grad_()
    balance_loss(scores, route(scores, Gate(1)).experts).backward()
    assert bool((scores.grad[:, 0] > 0).all())
    assert bool((scores.grad[:, 1:] < 0).all())


def test_score_loss_by_hand():
    assert score_loss(torch.zeros(5, 4)).item() == pytest.approx(math.log(4) ** 2)


def test_a_bias_is_corrected_towards_the_mean():
    bias = corrected_bias(torch.zeros(3), torch.tensor([10, 4, 1]), 0.5)
    assert bias.tolist() == [-0.5, 0.5, 0.5]
