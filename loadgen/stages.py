"""Steps of a load test: stretches of one rate and cv, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen import checks, option_text
from loadgen.errors import TrafficError
from loadgen.streams import check_seed
from loadgen.traffic_options import CV, DURATION, RATE, TrafficOptions

_MOST = 1000


@dataclass(frozen=True)
class Stage:
    """`cv` is a number, or what was typed for each model."""

    start_s: float
    duration_s: float
    rate_per_s: float
    cv: str

    @property
    def label(self) -> str:
        return f"rate {self.rate_per_s:g}, cv {self.cv}"


def stages_from(options: TrafficOptions) -> list[Stage]:
    """Those of --stages, or the one of --rate, --cv and --duration."""
    duration = options.duration or DURATION
    given = option_text.names(options.stages) or [f"{options.rate or RATE}"]
    if len(given) > _MOST:
        raise TrafficError(f"--stages: {len(given)} of them; give at most {_MOST}")
    stages: list[Stage] = []
    start = 0.0
    for text in given:
        where = "--stages" if options.stages else "--rate"
        parts = text.split(":")
        if len(parts) > 3 or not all(parts):
            raise TrafficError(f"{where}: {checks.shown(text)} is no step; give RATE, RATE:CV or RATE:CV:DURATION")
        rate = checks.positive(option_text.number(parts[0], where), where, checks.MAX_RATE_PER_S)
        cv = parts[1] if len(parts) > 1 else options.cv or CV
        length = option_text.seconds(
            parts[2] if len(parts) > 2 else duration, where if len(parts) > 2 else "--duration"
        )
        stages.append(Stage(start, length, rate, cv))
        start += length
    return stages


def stage_seed(seed: int, stage: int) -> int:
    """Each stage draws its own gaps; the first those of the seed itself."""
    if stage == 0:
        return check_seed(seed)
    return int(np.random.SeedSequence((seed, stage)).generate_state(1)[0])
