"""The devices of a group as threads of one process that meet at a barrier: for laws that need many small worlds."""

import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import torch

Received = namedtuple("Received", "rows counts")


class ThreadExchange:
    def __init__(self, rank, board):
        self.rank, self.size, self._board = rank, board.size, board

    def all_gather(self, tensor):
        return torch.cat(self._board.exchange(self.rank, tensor), dim=-1)

    def all_to_all(self, rows, counts):
        assert sum(counts) == len(rows)
        sent = self._board.exchange(self.rank, rows.split(counts))
        mine = [parts[self.rank] for parts in sent]
        return Received(torch.cat(mine), [len(part) for part in mine])


class Board:
    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=30)
        self._brought = [None] * size

    def exchange(self, rank, value):
        self._brought[rank] = value
        self._barrier.wait()
        everything = list(self._brought)
        self._barrier.wait()
        return everything


def together(size, part):
    """Run part(exchange) on all devices at once; what each gave, in order."""
    board = Board(size)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda rank: part(ThreadExchange(rank, board)), range(size), timeout=60))
