"""Random streams: one for each purpose and model, so that changing one leaves the others as they were."""

import numpy as np

from loadgen import checks

# Wider seeds would spill into the next word of the entropy and meet another model's stream.
_MOST_SEED = 2**32 - 1


def check_seed(value: object) -> int:
    return checks.whole(value, "seed", 0, _MOST_SEED)


def stream(seed: int, model: int) -> np.random.Generator:
    """For the arrivals of one model."""
    return _generator(seed, model)


def token_stream(seed: int, model: int) -> np.random.Generator:
    """For the token counts of one model."""
    return _generator(seed, model, 1)


def deal_stream(seed: int) -> np.random.Generator:
    """For dealing a trace without models out to the models."""
    return _generator(seed, 0, 2)


def _generator(*entropy: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
