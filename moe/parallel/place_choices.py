"""Choices handed to the slots of their experts on a CPU, compiled: one pass over the choices, nothing sorted."""

from __future__ import annotations

from moe.arrays import Ints
from placement.compiled import entry_point


@entry_point
def place_choices(
    experts: Ints,
    skipped: Ints,
    shares: Ints,
    filled: Ints,
    first: Ints,
    names: Ints,
    current: Ints,
    left: Ints,
    found: Ints,
) -> None:
    """found [tokens, top_k]: the name of each choice's slot. The slots of expert e are filled[first[e]] and those that
    follow; slot s takes shares[s] choices in the order of tokens, after skipped[e] that others have.

    current [experts] and left [slots in use] are room to work in.
    """
    for place in range(len(filled)):
        left[place] = shares[filled[place]]
    for expert in range(len(first)):
        current[expert] = first[expert]
        behind = skipped[expert]
        while behind > 0:
            place = current[expert]
            taken = min(behind, left[place])
            left[place] -= taken
            behind -= taken
            if behind > 0:
                current[expert] += 1
    for token in range(experts.shape[0]):
        for choice in range(experts.shape[1]):
            expert = experts[token, choice]
            while left[current[expert]] == 0:
                current[expert] += 1
            left[current[expert]] -= 1
            found[token, choice] = names[filled[current[expert]]]
