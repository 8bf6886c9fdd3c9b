"""Which samples a step trains, and which worker computes which part of it: pure functions of seed, step and number of
workers. Every sample comes once before any comes again, in an order that knows nothing of workers.
"""

from __future__ import annotations

import numpy as np

from training.arrays import Ints


class Samples:
    """`count` samples, in an order of their own each time round; a step takes the next `batch` of them."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        assert count >= 1
        self._count, self._batch, self._seed = count, batch, seed
        self._orders: dict[int, Ints] = {}

    def of_step(self, step: int) -> Ints:
        """[batch]"""
        numbers = np.arange(step * self._batch, (step + 1) * self._batch)
        rounds, places = np.divmod(numbers, self._count)
        return np.array([self._order(int(turn))[place] for turn, place in zip(rounds, places, strict=True)], np.int64)

    def _order(self, turn: int) -> Ints:
        if turn not in self._orders:
            if len(self._orders) > self._batch // self._count + 2:
                self._orders.clear()
            drawn = np.random.Generator(np.random.Philox(key=[self._seed, turn]))
            self._orders[turn] = drawn.permutation(self._count)
        return self._orders[turn]


def parts_of(rank: int, workers: int, parts: int) -> range:
    """The micro-batches that one of the workers computes; none where there are more workers than parts."""
    return range(parts * rank // workers, parts * (rank + 1) // workers)
