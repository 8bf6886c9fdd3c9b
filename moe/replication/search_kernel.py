"""The search for a placement, compiled: the best of several ways to build one, then exchanges where devices are tight.

A placement's cost in a layer is the mean over the scenarios (what the load may become) of greatest over mean device
load, tokens split as is best for each, plus what the slots that change would cost to fill.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from moe.arrays import Floats, Ints
from moe.replication.build_kernel import Recipe, Yard, build, count_replicas
from moe.split_kernel import Homes, Work, index_slots, settle
from placement.compiled import compiled, compiled_apart, entry_point

LEAST_GAIN = 1e-7


class Judge(NamedTuple):
    """What a placement is judged by, and scratch for it."""

    speed: Floats
    """[devices]"""
    weight: Floats
    """[scenarios], of sum 1"""
    mean: Floats
    """[scenarios]: load over speed of all devices, of this layer"""
    level: Floats
    """[scenarios]: of the placement in hand, times weight over mean"""
    trial: Floats
    """[scenarios]: the same of the one being tried"""
    lower: Floats
    """[scenarios]: what that is at least"""
    tight: Ints
    """[scenarios, devices]: where the placement in hand is tight"""
    trial_tight: Ints
    limit: Floats
    """[1]: the greatest device load allowed in the first scenario, the expected load"""
    held: Ints
    """[devices, experts]: what the previous placement has where"""
    flow: Floats
    """[slots]"""
    work: Work


@entry_point
def search_layers(
    load: Floats,
    order: Ints,
    scenarios: Floats,
    limit: Floats,
    previous: Ints,
    plain: Ints,
    recipes: Floats,
    move_cost: float,
    chance: Floats,
    homes: Homes,
    judge: Judge,
    yard: Yard,
    expert: Ints,
    cost: Floats,
) -> None:
    """Better expert [layers, slots], which comes as `plain`, and fill cost [layers].

    load and order (by falling load) [layers, experts]; scenarios [layers, scenarios, experts], the expected load first;
    limit [layers] for that one; previous and plain [layers, slots], a placement that keeps the limit, previous of no
    slots if there is none; recipes [recipes, 3] as in Recipe; chance [layers, steps, 4] of numbers below 1.
    """
    has_previous = previous.shape[1] > 0
    for layer in range(load.shape[0]):
        best = Homes(homes.start, homes.device, expert[layer], homes.first, homes.slot, homes.shared, homes.crowd)
        drawn = scenarios[layer]
        for number in range(drawn.shape[0]):
            judge.mean[number] = _mean(drawn[number], judge.speed)
            judge.lower[number] = judge.weight[number]  # no device load is below the mean
        if has_previous:
            _remember(previous[layer], 1, homes, judge.held)
        judge.limit[0] = limit[layer]
        cost[layer] = math.inf
        for number in range(-1, recipes.shape[0] + 1):  # of equals the first is kept: previous, built, plain
            if number < 0 and not has_previous:
                continue
            if 0 <= number < recipes.shape[0]:
                recipe = Recipe(recipes[number, 0], recipes[number, 1], recipes[number, 2])
                count_replicas(load[layer], order[layer], homes.expert.size, judge.speed.size, recipe, yard)
                build(load[layer], order[layer], judge.speed, recipe, homes, yard)
            else:
                for place in range(homes.expert.size):
                    homes.expert[place] = previous[layer, place] if number < 0 else plain[layer, place]
            _keep_better(drawn, move_cost, homes, best, judge, layer, cost)
        cost[layer] = _improve(drawn, move_cost, best, judge, chance[layer])
        if has_previous:
            _remember(previous[layer], 0, homes, judge.held)


@compiled_apart
def _mean(load: Floats, speed: Floats) -> float:
    total, speeds = 0.0, 0.0
    for expert in range(load.size):
        total += load[expert]
    for device in range(speed.size):
        speeds += speed[device]
    return max(total / speeds, 1e-300)


@compiled_apart
def _remember(previous: Ints, value: int, homes: Homes, held: Ints) -> None:
    for place in range(previous.size):
        if previous[place] >= 0:
            held[homes.device[place], previous[place]] = value


@compiled_apart
def _keep_better(
    drawn: Floats, move_cost: float, homes: Homes, best: Homes, judge: Judge, layer: int, cost: Floats
) -> None:
    index_slots(homes)
    found = _try(drawn, 0, homes, judge, math.inf, cost[layer] - _moves_cost(homes, move_cost, judge.held))
    found += _moves_cost(homes, move_cost, judge.held)
    if found < cost[layer]:
        cost[layer] = found
        for place in range(homes.expert.size):
            best.expert[place] = homes.expert[place]


@compiled_apart
def _moves_cost(homes: Homes, move_cost: float, held: Ints) -> float:
    if move_cost <= 0:
        return 0.0
    moves = 0
    for place in range(homes.expert.size):
        if homes.expert[place] >= 0:
            moves += 1 - held[homes.device[place], homes.expert[place]]
    return moves * move_cost


@compiled_apart
def _try(drawn: Floats, first: int, homes: Homes, judge: Judge, least: float, bound: float) -> float:
    """The placement's cost without moves. Infinity once it cannot come below the bound, or scenario `first`, which is
    looked at first, not below `least`."""
    total = 0.0
    scenarios = drawn.shape[0]
    for number in range(scenarios):
        total += judge.lower[number]
    for step in range(scenarios):
        number = (first + step) % scenarios
        level = settle(drawn[number], homes, judge.speed, False, judge.flow, judge.work)
        judge.trial[number] = judge.weight[number] * level / judge.mean[number]
        total += judge.trial[number] - judge.lower[number]
        if total > bound or (step == 0 and judge.trial[number] >= least):
            return math.inf
        if number == 0 and level > judge.limit[0]:
            return math.inf
        for device in range(judge.speed.size):
            judge.trial_tight[number, device] = judge.work.tight[device]
    return total


@compiled_apart
def _accept(judge: Judge) -> None:
    for number in range(judge.level.size):
        judge.level[number] = judge.trial[number]
        for device in range(judge.speed.size):
            judge.tight[number, device] = judge.trial_tight[number, device]


@compiled_apart
def _improve(drawn: Floats, move_cost: float, homes: Homes, judge: Judge, chance: Floats) -> float:
    """Exchange slots, or make one a further replica, where that lowers the cost; one trial for each row of chance."""
    index_slots(homes)
    cost = _try(drawn, 0, homes, judge, math.inf, math.inf)
    _accept(judge)
    moved = _moves_cost(homes, move_cost, judge.held)
    cost += moved
    scenarios = drawn.shape[0]
    for step in range(chance.shape[0]):
        number = min(scenarios - 1, int(chance[step, 0] * scenarios))
        here = _pick(chance[step, 1], judge.tight[number], 1, homes)
        there = _pick(chance[step, 2], judge.tight[number], 0, homes)
        if here < 0 or there < 0:
            continue
        mine, other = homes.expert[here], homes.expert[there]
        exchange = chance[step, 3] < 0.5
        if not _may(mine, other, here, there, exchange, drawn[number], judge.tight[number], homes):
            continue
        left = other if exchange else mine
        change = _new(there, mine, homes, judge.held) - _new(there, other, homes, judge.held)
        change += _new(here, left, homes, judge.held) - _new(here, mine, homes, judge.held)
        trial = moved + move_cost * change
        if _bound(drawn, mine, other, here, there, exchange, homes, judge) + trial > cost - LEAST_GAIN:
            continue
        homes.expert[there], homes.expert[here] = mine, left
        index_slots(homes)
        found = _try(drawn, number, homes, judge, judge.level[number], cost - trial - LEAST_GAIN) + trial
        if found < cost - LEAST_GAIN:
            cost, moved = found, trial
            _accept(judge)
            continue
        homes.expert[there], homes.expert[here] = other, mine
        index_slots(homes)
    return cost


@compiled_apart
def _bound(
    drawn: Floats, mine: int, other: int, here: int, there: int, exchange: bool, homes: Homes, judge: Judge
) -> float:
    """What the change would cost at least, without moves: the devices tight in a scenario still have to serve what
    lives on them alone. Fills judge.lower."""
    total = 0.0
    for number in range(drawn.shape[0]):
        tight = judge.tight[number]
        load = drawn[number]
        change = 0.0
        change -= load[mine] if _is_bound(mine, -1, tight, homes) else 0.0
        if tight[homes.device[there]] == 1 and _is_bound(mine, here if exchange else -1, tight, homes):
            change += load[mine]
        if other >= 0:
            change -= load[other] if _is_bound(other, -1, tight, homes) else 0.0
            if (not exchange or tight[homes.device[here]] == 1) and _is_bound(other, there, tight, homes):
                change += load[other]
        speeds = 0.0
        for device in range(judge.speed.size):
            speeds += judge.speed[device] * tight[device]
        least = judge.weight[number]
        if speeds > 0:
            least = max(least, judge.level[number] + judge.weight[number] * change / speeds / judge.mean[number])
        judge.lower[number] = least
        total += least
    return total


@compiled
def _new(place: int, expert: int, homes: Homes, held: Ints) -> int:
    """1 if the slot's device would have to get the expert."""
    return 0 if expert < 0 else 1 - int(held[homes.device[place], expert])


@compiled_apart
def _pick(chance: float, tight: Ints, wanted: int, homes: Homes) -> int:
    """A slot of the devices that are tight, or of the others; -1 if there are none."""
    slots = 0
    for device in range(tight.size):
        if tight[device] == wanted:
            slots += homes.start[device + 1] - homes.start[device]
    at = min(slots - 1, int(chance * slots))
    for device in range(tight.size):
        if tight[device] == wanted:
            here = homes.start[device + 1] - homes.start[device]
            if at < here:
                return int(homes.start[device] + at)
            at -= here
    return -1


@compiled_apart
def _may(mine: int, other: int, here: int, there: int, exchange: bool, load: Floats, tight: Ints, homes: Homes) -> bool:
    """Whether slot `there` may get the expert of slot `here` (tight), and whether that can help: the level is what the
    experts that live on tight devices alone ask of these, so it falls only if such load goes, and less comes."""
    if mine < 0 or mine == other or _holds(homes, homes.device[there], mine):
        return False
    if other >= 0:
        if exchange and _holds(homes, homes.device[here], other):
            return False
        if not exchange and homes.first[other + 1] - homes.first[other] < 2:
            return False
    goes = load[mine] if _is_bound(mine, -1, tight, homes) else 0.0
    comes = load[other] if other >= 0 and _is_bound(other, there, tight, homes) else 0.0
    return goes > comes


@compiled_apart
def _is_bound(expert: int, without: int, tight: Ints, homes: Homes) -> bool:
    """Whether all its slots but one are on tight devices."""
    for index in range(homes.first[expert], homes.first[expert + 1]):
        slot = homes.slot[index]
        if slot != without and tight[homes.device[slot]] == 0:
            return False
    return True


@compiled_apart
def _holds(homes: Homes, device: int, expert: int) -> bool:
    for place in range(homes.start[device], homes.start[device + 1]):  # noqa: SIM110  (a generator would be called)
        if homes.expert[place] == expert:
            return True
    return False
