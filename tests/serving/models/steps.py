"""Engine steps made by hand."""

import numpy as np

from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.step import GenerateStep

BLOCKS = 64
"""Of the cache they are for."""


def step_of(sequences, spare=3):
    """Of (first position, tokens); every sequence has four blocks, each `spare` behind the one before."""
    tables = np.array([[(1 + (4 * row + at) * spare) % BLOCKS for at in range(4)] for row in range(len(sequences))])
    tables = tables.astype(np.int32)
    starts = np.cumsum([0, *(len(tokens) for _, tokens in sequences)]).astype(np.int32)
    positions = np.concatenate([first + np.arange(len(tokens)) for first, tokens in sequences]).astype(np.int32)
    owner = np.repeat(np.arange(len(sequences)), np.diff(starts))
    slots = tables[owner, positions // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
    lens = np.array([first + len(tokens) for first, tokens in sequences], np.int32)
    flat = np.array([token for _, tokens in sequences for token in tokens], np.int32)
    return GenerateStep(0, "m", flat, positions, slots, tables, starts, lens, starts[1:].astype(np.int64) - 1, None)
