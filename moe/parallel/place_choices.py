"""Choices handed to the slots of their experts on a CPU, in one compiled call: counted, split over replicas, named.
Nothing is sorted and nothing allocated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moe.arrays import Floats, Ints
from moe.split_kernel import Homes, Work, index_slots, settle
from placement.compiled import compiled, entry_point


class Room(NamedTuple):
    """What a call works in."""

    total: Floats
    """[experts]"""
    shares: Floats
    """[slots]"""
    current: Ints
    """[experts]"""
    left: Ints
    """[slots]"""


class Placing(NamedTuple):
    """How the choices of a layer are placed."""

    homes: Homes
    """`start`, `device` and `expert` of it; the rest is scratch."""
    speed: Floats
    """[devices]"""
    evenly: bool
    """Over the slots of an expert, instead of so that the greatest of device load / speed is least."""
    names: Ints
    """[slots]: what a choice is given that goes there."""
    room: Room
    work: Work


class Others(NamedTuple):
    """Choices of each expert [experts] that other ranks make in the same layer; zeros where nobody else has tokens."""

    all: Ints
    before: Ints
    """Those that stand before this rank's."""


def make_room(experts: int, slots: int) -> Room:
    return Room(np.zeros(experts), np.zeros(slots), np.zeros(experts, np.int64), np.zeros(slots, np.int64))


@entry_point
def place_choices(experts: Ints, placing: Placing, others: Others, found: Ints) -> None:
    """experts [tokens, top_k] -> found, of the same shape: the name of each choice's slot. The choices of one slot
    follow each other in the order of tokens."""
    homes, room = placing.homes, placing.room
    for expert in range(len(room.total)):
        room.total[expert] = others.all[expert]
    for token in range(experts.shape[0]):
        for choice in range(experts.shape[1]):
            room.total[experts[token, choice]] += 1.0
    index_slots(homes)
    if placing.evenly:
        _split_evenly(homes, room)
    else:
        settle(room.total, homes, placing.speed, True, room.shares, placing.work)
    _skip(others.before, homes, room)
    for token in range(experts.shape[0]):
        for choice in range(experts.shape[1]):
            expert = experts[token, choice]
            while room.left[room.current[expert]] == 0:
                room.current[expert] += 1
            room.left[room.current[expert]] -= 1
            found[token, choice] = placing.names[homes.slot[room.current[expert]]]


@compiled
def _split_evenly(homes: Homes, room: Room) -> None:
    """To whole choices: the first slots of an expert take what cannot be divided."""
    for expert in range(len(room.total)):
        first, stop = homes.first[expert], homes.first[expert + 1]
        total = np.int64(room.total[expert])
        for index in range(first, stop):
            more = 1 if index - first < total % (stop - first) else 0
            room.shares[homes.slot[index]] = total // (stop - first) + more


@compiled
def _skip(before: Ints, homes: Homes, room: Room) -> None:
    """What is left of each slot's share, and which slot is the next of each expert, behind the choices of others."""
    for expert in range(len(room.total)):
        room.current[expert] = homes.first[expert]
        behind = before[expert]
        for index in range(homes.first[expert], homes.first[expert + 1]):
            share = np.int64(room.shares[homes.slot[index]])
            taken = min(behind, share)
            room.left[index] = share - taken
            behind -= taken
