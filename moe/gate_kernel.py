"""The commonest gate on a CPU, compiled: softmax, the best few, made to sum to one. Tokens on which it might differ
from torch, where scores are close to each other or no numbers, it leaves to torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placement.compiled import compiled, entry_point

LEFT = -1
_CLOSE = np.float32(1e-5)
"""Scores that are nearer may change places in a softmax that is rounded."""
_FAINT = np.float32(-80.0)
"""Scores further below the best may all have a softmax of zero."""


@entry_point
def choose(scores: Any, experts: Any, weights: Any) -> int:
    """scores [tokens, all experts] -> the best ones and their weights, [tokens, top_k]. Of the tokens left to torch the
    first expert is LEFT; how many there are."""
    left = 0
    for token in range(len(scores)):
        is_clear = _are_numbers(scores[token])
        if is_clear:
            behind = _best(scores[token], experts[token], weights[token])
            is_clear = _weigh(weights[token], behind)
        if not is_clear:
            experts[token, 0] = LEFT
            left += 1
    return left


@compiled
def _are_numbers(scores: Any) -> bool:
    found: Any = False
    for expert in range(len(scores)):
        found |= (np.float32(scores[expert]).view(np.int32) & 0x7FFFFFFF) >= 0x7F800000
    return not found


@compiled
def _best(scores: Any, experts: Any, kept: Any) -> Any:
    """The best experts and their scores into experts, kept [top_k], best first; gives the best score of the others."""
    top_k = len(kept)
    worst = behind = np.float32(-np.inf)
    for expert in range(len(scores)):
        score = scores[expert]
        if score <= worst:
            behind = max(behind, score)
            continue
        behind = worst
        place = min(expert, top_k - 1)
        while place > 0 and kept[place - 1] < score:
            experts[place], kept[place] = experts[place - 1], kept[place - 1]
            place -= 1
        experts[place], kept[place] = expert, score
        if expert >= top_k - 1:
            worst = kept[top_k - 1]
    return behind


@compiled
def _weigh(kept: Any, behind: Any) -> Any:
    """Scores [top_k] become weights; whether torch would have chosen the same, in the same order."""
    top_k = len(kept)
    best, last = kept[0], kept[top_k - 1]
    is_clear = last - best > _FAINT and (last - best) - (behind - best) > _CLOSE
    total, before = np.float32(0.0), np.float32(0.0)
    for choice in range(top_k):
        below = kept[choice] - best
        is_clear &= choice == 0 or before - below > _CLOSE
        before = below
        kept[choice] = np.exp(below)
        total += kept[choice]
    for choice in range(top_k):
        kept[choice] /= total
    return is_clear
