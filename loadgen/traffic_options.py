"""What was typed about traffic, a text an option; an empty one was not given. `penstock load` and Locust share it."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen import checks
from loadgen.errors import TrafficError

PROMPT_TOKENS, OUTPUT_TOKENS = "128", "32"
RATE, CV, DURATION = "10", "1", "60s"


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    rate: str = ""
    """Requests a second, of all models together."""
    cv: str = ""
    """Of the gaps between the requests of one model."""
    duration: str = ""
    models: str = ""
    """Names, between commas; all that are served, if empty."""
    mix: str = ""
    """NAME=SHARE of the rate, between commas."""
    slo: str = ""
    kind: str = ""
    prompt_tokens: str = ""
    output_tokens: str = ""
    trace: str = ""
    trace_start: str = ""
    rate_scale: str = ""
    cv_scale: str = ""
    stages: str = ""
    """RATE[:CV[:DURATION]], between commas."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate_scale", "cv_scale", "trace_start"):
            if getattr(self, name) and not self.trace:
                raise TrafficError(f"--{name.replace('_', '-')}: goes with --trace; give both, or --rate and --cv")
        for name in ("rate", "cv", "stages"):
            if getattr(self, name) and self.trace:
                raise TrafficError(
                    f"--{name}: the trace has its own; leave one out, or give --rate-scale and --cv-scale"
                )
        if self.stages and self.rate:
            raise TrafficError("--rate: the stages have their own; leave one out")
        checks.whole(self.seed, "--seed", 0, 2**32 - 1)
