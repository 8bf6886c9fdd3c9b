"""Lina's estimate: what tokens choose next, given the path of first choices they took through the last layers.

A path of three layers falls back on its last two, these on the last one, that on the layer's marginal: each level is
mixed with the one below it as if that had been seen `prior` times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moe.arrays import Floats, Ints
from moe.popularity.base import Routes
from moe.popularity.marginal import Marginal

LONGEST = 3


@dataclass
class PathTable:
    """What followed each path into one layer, of one length."""

    experts: int
    rows: dict[int, int] = field(default_factory=dict)
    """Path, its experts as digits, to row."""
    choices: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """[rows, experts]"""
    tokens: Floats = field(default_factory=lambda: np.zeros(0))
    """[rows]"""

    def add(self, keys: Ints, chosen: Routes, most_rows: int) -> None:
        """keys [tokens], chosen [tokens, top_k]; new paths are taken in while there is room."""
        paths, inverse = np.unique(keys, return_inverse=True)
        for path in paths.tolist():
            if path not in self.rows and len(self.rows) < most_rows:
                self.rows[path] = len(self.rows)
        self._grow(len(self.rows))
        row = self.find(paths)[inverse]
        known = row >= 0
        np.add.at(self.tokens, row[known], 1.0)
        np.add.at(self.choices, (row[known][:, None], chosen[known]), 1.0)

    def find(self, keys: Ints) -> Ints:
        """[tokens]: rows, -1 where a path was never seen."""
        return np.fromiter((self.rows.get(key, -1) for key in keys.tolist()), np.int64, len(keys))

    def _grow(self, rows: int) -> None:
        more = rows - len(self.tokens)
        if more > 0:
            self.choices = np.concatenate([self.choices.reshape(-1, self.experts), np.zeros((more, self.experts))])
            self.tokens = np.concatenate([self.tokens, np.zeros(more)])


class Paths:
    def __init__(
        self, layers: int, experts: int, length: int = LONGEST, prior: float = 8.0, most_rows: int = 2048
    ) -> None:
        """`most_rows` bounds the paths remembered of each length into each layer."""
        assert 1 <= length <= LONGEST
        self.marginal = Marginal(layers, experts)
        self.tables = [[PathTable(experts) for _ in range(layers)] for _ in range(length)]
        """[length - 1][layer]"""
        self._experts = experts
        self._prior = prior
        self._most_rows = most_rows

    def learn(self, routes: Routes) -> None:
        self.marginal.learn(routes)
        for length, tables in enumerate(self.tables, 1):
            for layer in range(length, routes.shape[1]):
                keys = self._keys(routes[:, :layer], length)
                tables[layer].add(keys, routes[:, layer].astype(np.int64), self._most_rows)

    def load(self) -> Floats:
        return self.marginal.load()

    def ahead(self, layer: int, routes: Routes) -> Floats:
        if len(routes) == 0:
            return np.zeros(self._experts)
        tokens = np.ones(len(routes))
        # The sum over tokens goes down the levels: what a level does not explain is left to the one below it.
        expected = np.zeros(self._experts)
        for length in range(min(len(self.tables), layer), 0, -1):
            table = self.tables[length - 1][layer]
            row = table.find(self._keys(routes[:, :layer], length))
            known = row >= 0
            seen = table.tokens[row[known]] + self._prior
            weight = np.bincount(row[known], weights=tokens[known] / seen, minlength=len(table.tokens))
            if known.any():
                expected += weight @ table.choices
            tokens[known] *= self._prior / seen
        return np.asarray(expected + tokens.sum() * self.marginal.load()[layer])

    def _keys(self, routes: Routes, length: int) -> Ints:
        """[tokens]: first choices of the last `length` of these layers as digits."""
        first = routes[:, -length:, 0].astype(np.int64)
        return np.asarray(first @ (self._experts ** np.arange(length, dtype=np.int64)))
