"""Which tokens of which sequences run next: continuous batching with chunked prefill, preemption by recompute.

Pure bookkeeping on sequences and block numbers: knows nothing of tensors, processes or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.engine.blocks import BlockPool, block_keys
from serving.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Chunk:
    """Tokens [start, start + count) of a sequence; `samples` when the next token follows from them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool

    @property
    def decodes(self) -> bool:
        return self.count == 1 and self.samples and bool(self.sequence.output_ids)


@dataclass(frozen=True)
class Limits:
    """Of one step. A chunk is cut to what is left of `step_tokens`; everybody who decodes always runs."""

    step_tokens: int = 512
    sequences: int = 256
    """That one lane may hold."""


@dataclass(eq=False)
class Lane:
    """Sequences that step together. A group has as many lanes as stages, and one step of each in flight."""

    running: list[Sequence] = field(default_factory=list)
    """In the order they were pulled."""
    in_flight: bool = False
    ended_at: float = 0.0
    """When its last step ended, for who looks at the time."""


Cut = Callable[[Lane, list[Chunk], int, int], int]
"""How many more tokens of a prompt may join a step: the lane, the step so far, how many are cached, how many could."""


@dataclass
class Scheduler:
    """All sequences of one model on one group: those that wait, and those that run in lanes."""

    pool: BlockPool
    limits: Limits = field(default_factory=Limits)
    lanes: list[Lane] = field(default_factory=lambda: [Lane()])
    waiting: deque[Sequence] = field(default_factory=deque)
    preemptions: int = 0
    cut: Cut | None = None
    """What else bounds a prompt's chunk: a goal in time."""

    @property
    def running(self) -> int:
        return sum(len(lane.running) for lane in self.lanes)

    def has_work(self, lane: Lane) -> bool:
        return not lane.in_flight and (bool(lane.running) or bool(self.waiting))

    def schedule(self, lane: Lane) -> list[Chunk]:
        """The next step of a lane that has none in flight, with the blocks it needs; empty when nothing can run.

        1. Room for the next token of everybody who decodes; while there is none, the lane's youngest is preempted.
        2. They all run; what they leave of the step's tokens, and what `cut` lets in, goes to prefills: first those
           begun, then pulled ones.
        """
        assert not lane.in_flight
        self._make_room(lane)
        chunks, begun = self._decode(lane)
        budget = self.limits.step_tokens - len(chunks)
        for one in begun:
            count = self._most(lane, chunks, one.computed, min(one.pending, budget))
            if count > 0:
                chunks.append(self._chunk(one, count))
            budget = 0 if one.pending else budget - count
        while budget > 0 and self._can_pull(lane):
            done = self._known(self.waiting[0])
            count = self._most(lane, chunks, done, min(len(self.waiting[0]) - done, budget))
            if count == 0:
                break
            one = self._pull(lane)
            chunks.append(self._chunk(one, count))
            budget = 0 if one.pending else budget - count
        return chunks

    def finish(self, lane: Lane, one: Sequence) -> None:
        """The sequence has ended; its blocks are given back."""
        lane.running.remove(one)
        self._release(one)

    def _most(self, lane: Lane, chunks: list[Chunk], done: int, most: int) -> int:
        return most if self.cut is None or most <= 0 else self.cut(lane, chunks, done, most)

    def _make_room(self, lane: Lane) -> None:
        """Step 1, for those whose last block is full. Youngest first, one in the middle of its prefill before all."""
        size = self.pool.block_tokens
        for one in [one for one in lane.running if one.computed >= len(one.blocks) * size]:
            if one not in lane.running:
                continue
            while not self.pool.can_allocate(1):
                youngest = next((s for s in reversed(lane.running) if not s.is_decoding), lane.running[-1])
                self._preempt(lane, youngest)
                if youngest is one:
                    break
            else:
                self._extend(one, one.computed + 1)

    def _preempt(self, lane: Lane, one: Sequence) -> None:
        lane.running.remove(one)
        self._release(one)
        self.waiting.appendleft(one)
        self.preemptions += 1

    def _can_pull(self, lane: Lane) -> bool:
        """The first who waits is pulled if the lane has no more than its share, and if all its tokens and a block to
        decode into fit beside what runs; where nothing runs, it is.
        """
        if not self.waiting or len(lane.running) >= self.limits.sequences:
            return False
        if len(lane.running) * len(self.lanes) >= self.running + len(self.waiting):
            return False
        one = self.waiting[0]
        found = self.pool.find(self._prefix_keys(one))
        spare = 1 if self.running else 0
        return self.pool.can_hold(found, self.pool.needed(len(one), len(found)) + spare)

    def _known(self, one: Sequence) -> int:
        """Tokens of it that are in the cache already."""
        return len(self.pool.find(self._prefix_keys(one))) * self.pool.block_tokens

    def _pull(self, lane: Lane) -> Sequence:
        """All blocks of its tokens are taken at once: a prefill that has begun never waits for room."""
        one = self.waiting.popleft()
        found = self.pool.find(self._prefix_keys(one))
        self.pool.hold(found)
        one.extend_blocks(found)
        one.computed = len(found) * self.pool.block_tokens
        self._extend(one, len(one))
        if not one.output_ids:
            one.cached_prompt = one.computed
        lane.running.append(one)
        return one

    def _decode(self, lane: Lane) -> tuple[list[Chunk], list[Sequence]]:
        """One token of everybody who decodes, and those still in their prefill. Most of what a step costs is here."""
        size = self.pool.block_tokens
        chunks, begun = [], []
        for one in lane.running:
            if not one.is_decoding:
                begun.append(one)
            elif (one.computed + 1) % size == 0:  # fills its block
                chunks.append(self._chunk(one, 1))
            else:
                chunks.append(Chunk(one, one.computed, 1, samples=True))
                one.computed += 1
        return chunks, begun

    def _chunk(self, one: Sequence, count: int) -> Chunk:
        """The next tokens of a sequence. Blocks they fill can be adopted by whoever is scheduled later, even in the
        same step: each stage runs steps in this order, and in a layer stores all keys before anybody looks at them.
        """
        start, size = one.computed, self.pool.block_tokens
        one.computed += count
        first, last = start // size, one.computed // size
        if last > first:
            one.keys = block_keys(one.tokens, one.keys, last, size)
            for block in range(first, last):
                self.pool.publish(one.blocks[block], one.keys[block])
        return Chunk(one, start, count, samples=one.computed == len(one))

    def _prefix_keys(self, one: Sequence) -> list[bytes]:
        """Of the full blocks that may be adopted: at least one token is left to compute, for its successor."""
        full = (len(one) - 1) // self.pool.block_tokens
        one.keys = block_keys(one.tokens, one.keys, full, self.pool.block_tokens)
        return one.keys[:full]

    def _extend(self, one: Sequence, tokens: int) -> None:
        one.extend_blocks(self.pool.allocate(self.pool.needed(tokens, len(one.blocks))))

    def _release(self, one: Sequence) -> None:
        self.pool.release(one.blocks)
        one.drop_cache()
