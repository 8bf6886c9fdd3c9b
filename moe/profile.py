"""One run of `penstock moe profile`: what a model's routes on some prompts teach, and how well that foretells others.

Every fifth prompt is held out to judge by, and learned in the end. Knows routes; running the model is others' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moe.arrays import Floats
from moe.popularity import Accuracy, Paths, Routes, count_choices
from placement.errors import InputError

HOLD_OUT = 5
"""One prompt of so many."""
BATCH_TOKENS = 512
TOP = 3
"""Experts named for each layer."""


class RoutedModel(Protocol):
    """A model that tells where its tokens go."""

    @property
    def experts(self) -> int:
        """Of a layer."""

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers with experts."""

    def routes(self, text: str) -> Routes:
        """[tokens, layers with experts, top_k] of a prompt."""


@dataclass(frozen=True)
class RouteProfile:
    paths: Paths
    """Learned from all prompts."""
    layers: list[int]
    history: Floats
    """[batches, layers, experts]: choices of each batch of prompts."""
    prompts: int
    held_out_prompts: int
    held_out_tokens: int
    marginal: list[Accuracy]
    """[layers]: of the mean popularity, on the prompts held out."""
    path: list[Accuracy]
    """[layers]: of the estimate by the tokens' paths so far; the first layer has none, and where there are others, the
    means over layers leave it out."""

    def summary(self) -> dict[str, Any]:
        choices = self.paths.marginal.choices
        experts = choices.shape[1]
        share = choices / np.maximum(choices.sum(axis=1, keepdims=True), 1)
        order = np.argsort(-share, axis=1, kind="stable")[:, :TOP]
        return {
            "experts": experts,
            "prompts": self.prompts,
            "tokens": self.paths.marginal.tokens,
            "held_out": {
                "prompts": self.held_out_prompts,
                "tokens": self.held_out_tokens,
                "k": self.marginal[0].k,
                "marginal": _mean(self.marginal[1:] or self.marginal),
                "path": _mean(self.path),
            },
            "layers": [
                {
                    "layer": layer,
                    "top": [[int(expert), float(share[at, expert])] for expert in order[at]],
                    "busiest_over_mean": float(share[at].max() * experts),
                    "never_chosen": int(np.count_nonzero(choices[at] == 0)),
                    "marginal": _mean(self.marginal[at : at + 1]),
                    "path": _mean(self.path[at : at + 1]),
                }
                for at, layer in enumerate(self.layers)
            ],
        }


def profile_routes(model: RoutedModel, prompts: Iterable[str], where: Path) -> RouteProfile:
    """`where` the prompts come from, for what is wrong with them."""
    every = [routes for routes in map(model.routes, prompts) if len(routes)]
    if len(every) < 2:
        raise InputError(f"{where}: {len(every)} prompts with tokens; at least two are needed, one to judge by")
    held_out = every[HOLD_OUT - 1 :: HOLD_OUT] or every[-1:]
    learned = [routes for number, routes in enumerate(every) if number % HOLD_OUT != HOLD_OUT - 1]
    learned = learned if len(every) >= HOLD_OUT else every[:-1]
    layers = len(model.layers)
    paths = Paths(layers, model.experts)
    for batch in _batches(learned):
        paths.learn(batch)
    k = max(1, min(8, model.experts // 4))
    marginal, path = ([Accuracy(k) for _ in range(layers)] for _ in range(2))
    judged = list(_batches(held_out))
    for batch in judged:
        actual = count_choices(batch, model.experts)
        for layer in range(layers):
            marginal[layer].note(paths.load()[layer], actual[layer])
            if layer:
                path[layer].note(paths.ahead(layer, batch[:, :layer]), actual[layer])
    for batch in judged:
        paths.learn(batch)
    history = np.stack([count_choices(batch, model.experts) for batch in _batches(every)])
    tokens = sum(map(len, held_out))
    return RouteProfile(paths, model.layers, history, len(every), len(held_out), tokens, marginal, path)


def _batches(routes: list[Routes]) -> Iterator[Routes]:
    """Prompts side by side, as many tokens as a batch has; the last may have fewer."""
    together = np.concatenate(routes)
    for start in range(0, len(together), BATCH_TOKENS):
        yield together[start : start + BATCH_TOKENS]


def _mean(layers: list[Accuracy]) -> dict[str, float] | None:
    measured = [layer for layer in layers if layer.layers]
    if not measured:
        return None
    return {
        "recall": sum(layer.recall for layer in measured) / len(measured),
        "total_variation": sum(layer.variation for layer in measured) / len(measured),
    }
