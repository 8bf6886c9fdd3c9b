"""What an operator is told of experts: explanations, and figures for metrics. Of layers and experts only summaries, so
that the number of series does not grow with devices or experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moe.arrays import Floats
from serving.controller.expert_popularity import ExpertPopularity
from serving.controller.experts import ExpertKeeper, Seen, Where
from serving.http import Family, Histogram

MOST_LAYERS = 128
"""Of one model, that have a series of their own."""
Figures = dict[tuple[str, ...], float | Histogram]


def explain_experts(keeper: ExpertKeeper) -> dict[str, Any]:
    """Of each model whose experts are placed, on each of its groups: how balanced, what would be better, what moved."""
    return {
        "mode": keeper.settings.mode,
        "experts": [_told(keeper, where) for where in keeper.places()],
        "popularity": {
            model: {
                "top_share": [round(float(share), 4) for share in one.top_share()[:, 0]],
                "top_experts": one.top().tolist(),
                "recall": None if one.accuracy is None else round(one.accuracy.recall, 4),
                "variation": None if one.accuracy is None else round(one.accuracy.variation, 4),
            }
            for model, one in keeper.popularity.items()
            if one.last is not None
        },
    }


def expert_figures(keeper: ExpertKeeper) -> Iterator[Family]:
    places, seen = ("group", "model_name"), keeper.seen
    now: Figures = {tuple(where): float(one.balance.mean()) for where, one in seen.items()}
    yield Family("expert_balancedness", "Mean over greatest device load, of layers and steps.", "gauge", places, now)
    possible: Figures = {tuple(where): 1 / one.decision.expected_after for where, one in seen.items()}
    yield Family("expert_balancedness_possible", "What the best move would bring.", "gauge", places, possible)
    for name, help, counted in (
        ("expert_moves", "How often experts were moved.", keeper.moves),
        ("expert_moves_failed", "Moves that were refused or broken off.", keeper.failures),
        ("expert_moved_bytes", "Weights of experts that were moved.", keeper.moved_bytes),
    ):
        totals: Figures = {tuple(where): float(counted[where]) for where in keeper.places()}
        yield Family(name, help, "counter", places, totals)
    layers = ("model_name", "layer")
    worst: Figures = {
        (model, str(layer)): balance
        for model, layer_balance in _least_of_groups(seen).items()
        for layer, balance in enumerate(layer_balance[:MOST_LAYERS])
    }
    yield Family("expert_layer_balancedness", "Of one layer, the least of its groups.", "gauge", layers, worst)
    known = {model: one for model, one in keeper.popularity.items() if one.last is not None}
    yield from _top_figures(known)
    measured = {model: one.accuracy for model, one in known.items() if one.accuracy is not None}
    recall: Figures = {(model,): one.recall for model, one in measured.items()}
    yield Family("expert_estimate_recall", "Top experts that were foreseen.", "gauge", ("model_name",), recall)
    wrong: Figures = {(model,): one.variation for model, one in measured.items()}
    yield Family("expert_estimate_variation", "Choices expected elsewhere.", "gauge", ("model_name",), wrong)


def _top_figures(known: Mapping[str, ExpertPopularity]) -> Iterator[Family]:
    """Which experts they are is a value and no label: other experts become popular, and series would pile up."""
    labels = ("model_name", "layer", "rank")
    shares = _ranked({model: one.top_share() for model, one in known.items()})
    yield Family("expert_top_share", "Share of a layer's choices on its most chosen experts.", "gauge", labels, shares)
    names = _ranked({model: one.top().astype(np.float64) for model, one in known.items()})
    yield Family("expert_top", "Which expert has this rank among a layer's most chosen.", "gauge", labels, names)


def _ranked(found: Mapping[str, Floats]) -> Figures:
    """Of [layers, ranks] of each model; ranks from 1."""
    return {
        (model, str(layer), str(rank)): float(value)
        for model, values in found.items()
        for layer, row in enumerate(values[:MOST_LAYERS])
        for rank, value in enumerate(row, 1)
    }


def _told(keeper: ExpertKeeper, where: Where) -> dict[str, Any]:
    told: dict[str, Any] = {
        "model": where.model,
        "group": where.group,
        "moves": keeper.moves[where],
        "moved_bytes": keeper.moved_bytes[where],
        "failures": keeper.failures[where],
        "reason": keeper.reasons.get(where),
        "balancedness": None,
    }
    seen = keeper.seen.get(where)
    if seen is None:
        return told
    decision = seen.decision
    return told | {
        "balancedness": round(float(seen.balance.mean()), 4),
        "worst_layer": round(float(seen.balance.min()), 4),
        "expected": round(1 / decision.expected_before, 4),
        "possible": round(1 / decision.expected_after, 4),
        "worth_moving": decision.changes,
        "copies": len(decision.copies),
        "gain_s": round(decision.gain_s, 3),
        "cost_s": round(decision.cost_s, 3),
    }


def _least_of_groups(seen: Mapping[Where, Seen]) -> dict[str, list[float]]:
    """[layers] of each model."""
    least: dict[str, list[float]] = {}
    for where, one in seen.items():
        balance = one.balance.tolist()
        least[where.model] = [min(pair) for pair in zip(least.get(where.model, balance), balance, strict=True)]
    return least
