"""The compiled part of the collectives: taking a step together with all ranks, and the sum of their float32 tensors.

The board has a line of 128 bytes for each rank, after one for all. A rank writes only its own line, and all read it.
Who waits spins, then sleeps until the rank it waits for moves. None of this holds the interpreter's lock.
"""

from __future__ import annotations

from placement.compiled import compiled, entry_point
from serving.parallel.atomics import (
    FUTEX,
    fence,
    floats,
    load,
    memcpy,
    pause,
    poll,
    sched_yield,
    shorts,
    store,
    syscall,
)
from serving.parallel.region import LINE

DONE, ABORTED, LOST, MISMATCHED = 0, 1, 2, 3

# Words of the first line: who has aborted (its rank + 1), and how long a nap is (seconds, nanoseconds).
NAP = 8
# Words of a rank's line: its step, what it brings to even and to odd steps, whether it sleeps.
MARKS, ASLEEP = 8, 24

DIRECT_BYTES = 32 << 10
"""Up to here every rank of three and more sums the whole; above, each sums its share and the others fetch it."""
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


@compiled
def line_of(board: int, rank: int) -> int:
    return board + (1 + rank) * LINE


@compiled
def first_behind(board: int, size: int, step: int) -> int:
    for rank in range(size):
        if load(line_of(board, rank)) < step:
            return rank
    return size


@compiled
def lost_one(board: int, size: int, step: int, polls: int) -> bool:
    """Whether the socket of a peer has ended that did not reach the step; one that did is not missed yet."""
    if poll(polls, size, 0) <= 0:
        return False
    entries = shorts(polls)  # of each: the descriptor's two halves, events, what happened
    for rank in range(size):
        if entries[4 * rank + 3] != 0:
            if load(line_of(board, rank)) < step:
                return True
            entries[4 * rank] = entries[4 * rank + 1] = -1
    return False


@compiled
def nap(board: int, late: int, seen: int) -> bool:
    """Sleep while the step of a late rank is as seen; False when that took too long."""
    if FUTEX > 0:
        return bool(syscall(FUTEX, late, _FUTEX_WAIT, seen & 0xFFFFFFFF, board + NAP, 0, 0) == 0)
    sched_yield()
    return False


@compiled
def sleep(board: int, rank: int, size: int, step: int, polls: int) -> int:
    """Until all ranks have reached the step, nap by nap."""
    status = DONE
    store(line_of(board, rank) + ASLEEP, 1)
    fence()  # a peer stores its step and then looks who sleeps
    behind = first_behind(board, size, step)
    while behind < size and status == DONE:
        late = line_of(board, behind)
        seen = load(late)
        if seen < step:
            woken = nap(board, late, seen)
            if load(board) != 0:
                status = ABORTED
            elif not woken and lost_one(board, size, step, polls):
                status = LOST
        behind = first_behind(board, size, step)
    store(line_of(board, rank) + ASLEEP, 0)
    return status


@compiled
def wake(board: int, rank: int, size: int) -> None:
    """Wake whoever naps until this rank moves."""
    fence()
    asleep = 0
    for peer in range(size):
        asleep += load(line_of(board, peer) + ASLEEP)
    if asleep != 0 and FUTEX > 0:
        syscall(FUTEX, line_of(board, rank), _FUTEX_WAKE, size, 0, 0, 0)


@compiled
def meet(board: int, rank: int, size: int, mark: int, spins: int, polls: int) -> int:
    """Take the next step and wait for all; `mark`, what this rank brings, must be the same on all."""
    mine = line_of(board, rank)
    step = load(mine) + 1
    place = MARKS + 8 * (step % 2)
    store(mine + place, mark)
    store(mine, step)
    wake(board, rank, size)
    spun = 0
    while spun < spins and first_behind(board, size, step) < size:
        spun += 1
        pause()
    status = sleep(board, rank, size, step, polls) if spun == spins else DONE
    if status == DONE:
        for peer in range(size):
            if load(line_of(board, peer) + place) != mark:
                status = MISMATCHED
    return status


@compiled
def slot_of(slots: int, capacity: int, rank: int, step: int) -> int:
    """Each rank has two slots in turns: who starts a step knows that all are done with the one before the last."""
    return slots + (2 * rank + step % 2) * capacity


@compiled
def add_all(target: int, slots: int, capacity: int, size: int, step: int, first: int, count: int) -> None:
    """target[:count] = the sum over ranks of their slots from `first`, in the order of ranks."""
    sums = floats(target)
    left = floats(slot_of(slots, capacity, 0, step) + 4 * first)
    right = floats(slot_of(slots, capacity, 1, step) + 4 * first)
    for n in range(count):
        sums[n] = left[n] + right[n]
    for rank in range(2, size):
        more = floats(slot_of(slots, capacity, rank, step) + 4 * first)
        for n in range(count):
            sums[n] += more[n]


@entry_point
def take_step(board: int, rank: int, size: int, mark: int, spins: int, polls: int) -> int:
    """Take one step together with all ranks; what each wrote to its slot before is there for all."""
    return meet(board, rank, size, mark, spins, polls)


@entry_point
def all_reduce(
    board: int,
    slots: int,
    capacity: int,
    rank: int,
    size: int,
    mark: int,
    spins: int,
    polls: int,
    data: int,
    count: int,
) -> int:
    """Replace `count` float32 at `data` by their sums over all ranks, a slot's fill at a time."""
    fill = capacity // 4
    for begin in range(0, count, fill):
        here = data + 4 * begin
        length = min(fill, count - begin)
        step = load(line_of(board, rank)) + 1
        memcpy(slot_of(slots, capacity, rank, step), here, 4 * length)
        status = meet(board, rank, size, mark, spins, polls)
        if status != DONE:
            return status
        if size == 2 or 4 * length <= DIRECT_BYTES:
            add_all(here, slots, capacity, size, step, 0, length)
            continue
        share = -(-length // size)
        first = min(rank * share, length)
        add_all(
            slot_of(slots, capacity, rank, step + 1), slots, capacity, size, step, first, min(share, length - first)
        )
        status = meet(board, rank, size, mark, spins, polls)
        if status != DONE:
            return status
        for peer in range(size):
            first = min(peer * share, length)
            summed = slot_of(slots, capacity, peer, step + 1)
            memcpy(here + 4 * first, summed, 4 * min(share, length - first))
    return DONE
