"""How much larger a batch would be worth to a job that runs: the noise scale of its own gradients, from its history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from training.elastic.spec import LmSpec
from training.elastic.task import HISTORY
from training.pollux_fit import noise_scale

STEPS = 100
"""The last ones: the noise grows while a model learns."""


def measured_noise(folder: Path, spec: LmSpec) -> float | None:
    """In sequences; None where a step is one micro-batch, or none has been made."""
    if spec.parts < 2 or not (folder / HISTORY).is_file():
        return None
    lines = (folder / HISTORY).read_bytes().splitlines()
    decoded: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines if line.endswith(b"}")]
    squared = [one["squared"] for one in decoded if one["what"] == "step" and "squared" in one][-STEPS:]
    if not squared:
        return None
    parts, wholes = np.array(squared, np.float64).T
    return noise_scale(parts, wholes, spec.micro_batch, spec.batch)
