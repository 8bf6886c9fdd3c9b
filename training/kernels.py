"""The compiled loops of the policies: first fit in an order, growing by marginal gain. Nothing here allocates."""

from __future__ import annotations

import math

from placement.compiled import compiled, entry_point
from training.arrays import Bools, Floats, Ints


@entry_point
def first_fit(
    order: Ints, need: Ints, speed: Floats, mixed: Bools, held: Ints, free: Ints, strict: bool, workers: Ints
) -> int:
    """Give jobs their `need` in order, each on one kind: where it runs, else its fastest with room; a job that may mix
    kinds takes the fastest first. What `workers` has of it already is given back before. Writes workers [n, kinds],
    lowers free [kinds]; returns how far it came."""
    kinds = free.size
    left = 0
    for kind in range(kinds):
        left += free[kind]
    for position in range(order.size):
        if left <= 0:
            return position
        job = order[position]
        wanted = need[job]
        for kind in range(kinds):
            free[kind] += workers[job, kind]
            left += workers[job, kind]
            workers[job, kind] = 0
        if wanted > left:
            if strict:
                return position
            continue
        best = -1
        for kind in range(kinds):
            if free[kind] < wanted or speed[job, kind] <= 0:
                continue
            if held[job, kind] == wanted:
                best = kind
                break
            if best < 0 or speed[job, kind] > speed[job, best]:
                best = kind
        if best >= 0:
            workers[job, best] = wanted
            free[best] -= wanted
            left -= wanted
            continue
        usable = 0
        if mixed[job] and kinds > 1:
            for kind in range(kinds):
                if speed[job, kind] > 0:
                    usable += free[kind]
        if usable < wanted:
            if strict:
                return position
            continue
        missing = wanted
        while missing > 0:
            best = -1
            for kind in range(kinds):
                if free[kind] > 0 and speed[job, kind] > 0 and (best < 0 or speed[job, kind] > speed[job, best]):
                    best = kind
            take = min(missing, free[best])
            workers[job, best] += take
            free[best] -= take
            missing -= take
        left -= wanted
    return order.size


@entry_point
def grow_by_gain(
    work: Floats,
    waited: Floats,
    fairly: bool,
    most: Ints,
    serial: Floats,
    curve: Ints,
    curves: Floats,
    kind: Ints,
    speed: Floats,
    free: Ints,
    workers: Ints,
    heap: Ints,
    gain: Floats,
) -> float:
    """Give each next worker to the job whose running time it lowers most, until devices or gains end.

    A job grows on its `kind` alone from `workers` [n] to at most `most` [n]; `work` [n] is the time one worker needs,
    over `speed` [n]. `fairly`: by the logarithm of waited + running time instead. `free` is [kinds]; `heap` and `gain`
    [n] are room to work in. Returns the gain of the first worker that no device was left for, 0 where there is none.
    """
    size = 0
    refused = 0.0
    for job in range(work.size):
        if 0 < workers[job] < most[job]:
            gain[job] = _gain(job, work, waited, fairly, serial, curve, curves, speed, workers)
            if gain[job] > 0:
                heap[size] = job
                size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, gain, at, size)
    while size > 0:
        job = heap[0]
        if free[kind[job]] <= 0:
            refused = max(refused, gain[job])
            gain[job] = 0.0
        else:
            free[kind[job]] -= 1
            workers[job] += 1
            gain[job] = 0.0
            if workers[job] < most[job]:
                gain[job] = _gain(job, work, waited, fairly, serial, curve, curves, speed, workers)
        if gain[job] <= 0:
            size -= 1
            heap[0] = heap[size]
        _sink(heap, gain, 0, size)
    return refused


@compiled
def _gain(
    job: int,
    work: Floats,
    waited: Floats,
    fairly: bool,
    serial: Floats,
    curve: Ints,
    curves: Floats,
    speed: Floats,
    workers: Ints,
) -> float:
    """What one more worker saves: seconds, or the logarithm of the time since arrival."""
    now = work[job] / (speed[job] * _speedup(job, workers[job], serial, curve, curves))
    then = work[job] / (speed[job] * _speedup(job, workers[job] + 1, serial, curve, curves))
    if fairly:
        return math.log((waited[job] + now) / (waited[job] + then))
    return now - then  # type: ignore[no-any-return]  # numpy's scalars are Any


@compiled
def _speedup(job: int, count: int, serial: Floats, curve: Ints, curves: Floats) -> float:
    if curve[job] < 0:
        return count / (1.0 + serial[job] * (count - 1.0))  # type: ignore[no-any-return]
    return curves[curve[job], min(count, curves.shape[1] - 1)]  # type: ignore[no-any-return]


@compiled
def _sink(heap: Ints, gain: Floats, start: int, size: int) -> None:
    """Restore the heap (largest gain first, then the earlier job) below `start`."""
    at = start
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _before(heap[other], heap[child], gain):
            child = other
        if not _before(heap[child], heap[at], gain):
            break
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@compiled
def _before(one: int, other: int, gain: Floats) -> bool:
    return gain[one] > gain[other] or (gain[one] == gain[other] and one < other)


@entry_point
def fill_knapsack(values: Floats, lengths: Ints, capacity: int, best: Floats, before: Floats, choice: Ints) -> None:
    """Multiple-choice knapsack: from each group at most one item, item i weighing i + 1 and worth values[group, i].

    `best` and `before` [capacity + 1] are room to work in, best ending as the values; choice [groups, capacity + 1] is
    the weight taken from each group.
    """
    for room in range(capacity + 1):
        best[room] = 0.0
    for group in range(lengths.size):
        for room in range(capacity + 1):
            before[room] = best[room]
        for room in range(capacity + 1):
            taken = 0
            worth = before[room]
            for weight in range(1, min(lengths[group], room) + 1):
                if before[room - weight] + values[group, weight - 1] > worth:
                    worth = before[room - weight] + values[group, weight - 1]
                    taken = weight
            best[room] = worth
            choice[group, room] = taken


@entry_point
def roomiest_nodes(
    workers: int,
    nodes: Ints,
    is_open: Bools,
    free: Ints,
    last: Bools,
    node_cpus: Floats,
    cpus: float,
    node_memory: Floats,
    memory: float,
    room: Ints,
    chosen: Ints,
    taken: Ints,
) -> int:
    """Where to put so many workers on as few of `nodes` as can be: the tightest node that holds them all, else the
    roomiest first; nodes marked `last` only after the others. Writes node and workers; returns how many nodes, 0 where
    there is no room. `room` is [nodes] to work in."""
    total = 0
    for at in range(nodes.size):
        node = nodes[at]
        fit = free[node] if is_open[node] and node_memory[node] >= memory else 0
        if cpus > 0 and fit * cpus > node_cpus[node] + 1e-9:
            fit = int((node_cpus[node] + 1e-9) / cpus)
        room[at] = fit
        total += fit
    if total < workers:
        return 0
    count = 0
    left = workers
    while left > 0:
        best = -1
        for at in range(nodes.size):
            if room[at] <= 0:
                continue
            if best < 0:
                best = at
                continue
            here, there = last[nodes[at]], last[nodes[best]]
            holds, held = room[at] >= left, room[best] >= left
            if here != there:
                better = there and (holds or not held)
            elif holds and held:
                better = room[at] < room[best]
            else:
                better = room[at] > room[best]
            if better:
                best = at
        take = min(left, room[best])
        chosen[count] = nodes[best]
        taken[count] = take
        count += 1
        room[best] = 0
        left -= take
    return count


@entry_point
def rows_that_change(rows: Ints, held: Ints, wanted: Ints, changed: Ints) -> int:
    """Positions whose wanted workers [n, kinds] differ from those held [jobs, kinds]; returns how many."""
    count = 0
    for position in range(rows.size):
        for kind in range(wanted.shape[1]):
            if held[rows[position], kind] != wanted[position, kind]:
                changed[count] = position
                count += 1
                break
    return count


@entry_point
def keep_fastest(held: Ints, running: Bools, need: Ints, speed: Floats, free: Ints, workers: Ints) -> None:
    """Running jobs keep the fastest `need` of the workers they hold; lowers free [kinds]."""
    for job in range(need.size):
        if not running[job]:
            continue
        left = need[job]
        while left > 0:
            best = -1
            for kind in range(free.size):
                if held[job, kind] > workers[job, kind] and (best < 0 or speed[job, kind] > speed[job, best]):
                    best = kind
            if best < 0:
                break
            take = min(left, held[job, best] - workers[job, best])
            workers[job, best] += take
            free[best] -= take
            left -= take


@entry_point
def follow_priorities(
    order: Ints, priority: Floats, gpus: Ints, speed: Floats, free: Ints, taken: Bools, workers: Ints
) -> None:
    """One round: in the order of (job, kind) pairs, each job once, while its gang fits; first those with a priority,
    then, on what is left, anybody who can run there."""
    kinds = free.size
    for wanted in range(2):
        for position in range(order.size):
            job = order[position] // kinds
            kind = order[position] % kinds
            if taken[job] or free[kind] < gpus[job] or speed[job, kind] <= 0:
                continue
            if wanted == 0 and priority[job, kind] <= 0:
                continue
            taken[job] = True
            free[kind] -= gpus[job]
            workers[job, kind] = gpus[job]


@entry_point
def climb_speedups(value: Floats, fewest: Ints, most: Ints, capacity: int, counts: Ints) -> None:
    """Workers [n] that maximise sum_j value[j, count_j] within the capacity: the best gain for each worker given out
    (jumps of several where one alone does not pay, the first being to `fewest`), then moves of workers from one job to
    another while they help."""
    jobs = counts.size
    left = capacity
    while left > 0:
        best, by, rate = -1, 0, 0.0
        for job in range(jobs):
            here = counts[job]
            step = fewest[job] if here < fewest[job] else 1
            while step <= left and here + step <= most[job]:
                gain = (value[job, here + step] - value[job, here]) / step
                if gain > rate:
                    best, by, rate = job, step, gain
                if here == 0 or step >= 8:
                    break
                step *= 2
        if best < 0:
            break
        counts[best] += by
        left -= by
    for _ in range(4 * jobs):
        # The job that loses least by giving `by` workers, and the one that gains most from them.
        improved = False
        for by in (1, 2, 4):
            giver, taker, loss, gain = -1, -1, 1e300, 0.0
            for job in range(jobs):
                here = counts[job]
                if here - by >= fewest[job]:
                    drop = value[job, here] - value[job, here - by]
                    if drop < loss:
                        giver, loss = job, drop
                if here + by <= most[job] and here + by >= fewest[job]:
                    rise = value[job, here + by] - value[job, here]
                    if rise > gain:
                        taker, gain = job, rise
            if giver >= 0 and taker >= 0 and giver != taker and gain > loss + 1e-12:
                counts[giver] -= by
                counts[taker] += by
                improved = True
                break
        if not improved:
            break
