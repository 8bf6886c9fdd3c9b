"""All that is said about one load test, and whether to believe it."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.demand import Demand
from loadgen.overrun import Overrun
from loadgen.results.columns import Columns
from loadgen.results.figures import Part, parts_of
from loadgen.results.goals import Goal

LAG_LIMIT_S = 0.005


class Summary(Part, frozen=True, kw_only=True):
    version: int = 1
    url: str
    valid: bool
    """Whether the generator sent what was asked, when it was asked."""
    invalid_because: list[str]
    seed: int
    duration: float
    generator_cpu: float
    """CPU seconds of this process a second, while it sent."""
    shortened: int
    """Requests whose tokens were cut to what the model takes."""
    slo: dict[str, str]
    worst_model: tuple[str, float]
    models: dict[str, Part]
    stages: list[Part]


def summarise(
    columns: Columns,
    demand: Demand,
    slo: Sequence[Goal],
    goodput: Goal | None,
    *,
    url: str,
    generator_cpu: float,
    interrupted: bool = False,
    overrun: Overrun | None = None,
) -> Summary:
    parts = parts_of(columns, demand, slo, goodput)
    whole, models = parts.whole, parts.models
    because = why_invalid(whole, columns.unsent, interrupted, overrun)
    worst = min(models, key=lambda name: models[name].attainment)
    return Summary(
        **{field: getattr(whole, field) for field in Part.__struct_fields__},
        url=url,
        valid=not because,
        invalid_because=because,
        seed=demand.seed,
        duration=demand.duration_s,
        generator_cpu=generator_cpu,
        shortened=demand.shortened,
        slo={model.name: str(goal) for model, goal in zip(demand.models, slo, strict=True)},
        worst_model=(worst, models[worst].attainment),
        models=models,
        stages=parts.stages,
    )


def why_invalid(whole: Part, not_sent: int, interrupted: bool, overrun: Overrun | None = None) -> list[str]:
    because = []
    if overrun is not None:
        because.append(str(overrun))
    elif whole.lag is not None and whole.lag.p99 > LAG_LIMIT_S:
        because.append(
            f"the generator could not keep up: p99 of its lag is {whole.lag.p99 * 1e3:.1f} ms, over "
            f"{LAG_LIMIT_S * 1e3:g} ms; lower the rate, or split it over several (Locust's workers)"
        )
    if not_sent:
        because.append(f"{not_sent} requests were not sent: too many were open; raise --max-open or lower the rate")
    if interrupted:
        because.append("it ended before all requests had come to an end")
    return because
