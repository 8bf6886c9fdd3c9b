"""A load test against one server: what was asked for, the server as found, and what is sent to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadgen.client.limits import Limits
from loadgen.demand import Demand
from loadgen.errors import TrafficError
from loadgen.results.goals import Goal, slo_goals
from loadgen.target.asks import Api, Asks
from loadgen.target.look import list_models, tokens_of
from loadgen.target.models import TargetModel, choose_models
from loadgen.target.prompts import SAMPLE, Prompts, make_prompts
from loadgen.target.url import TargetUrl
from loadgen.traffic_options import TrafficOptions

_NO_TPOT = "has a TPOT, which answers that come whole do not show; leave it or --no-stream out"


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    """What holds for every run against one server."""

    url: TargetUrl
    traffic: TrafficOptions
    goodput: Goal | None = None
    api: Api = "completions"
    stream: bool = True
    ignore_eos: bool = True
    api_key: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not all("!" <= letter <= "~" for letter in self.api_key):
            raise TrafficError("--api-key: has letters that no header can carry; give the key alone")
        if not self.stream and self.goodput is not None and math.isfinite(self.goodput.tpot_s):
            raise TrafficError(f"--goodput: {_NO_TPOT}")


@dataclass(frozen=True, eq=False)
class Target:
    """The server as found: the models that get traffic, and for each its goal and its prompts."""

    models: tuple[TargetModel, ...]
    slo: tuple[Goal, ...]
    prompts: tuple[Prompts, ...]


def look_at(test: LoadTest) -> Target:
    """TrafficError when nobody answers, or a model is not there."""
    traffic = test.traffic
    listed = list_models(test.url, test.api_key)
    models = choose_models(listed, traffic.models, traffic.mix, traffic.kind, test.url.base)
    prompts = [make_prompts(traffic.seed, tokens_of(test.url, model.name, SAMPLE, test.api_key)) for model in models]
    slo = slo_goals(traffic.slo, models)
    if not test.stream and any(math.isfinite(goal.tpot_s) for goal in slo):
        raise TrafficError(f"--slo: {_NO_TPOT}")
    return Target(tuple(models), tuple(slo), tuple(prompts))


def make_asks(test: LoadTest, target: Target, demand: Demand) -> Asks:
    return Asks(
        demand,
        target.prompts,
        target.slo,
        api=test.api,
        stream=test.stream,
        ignore_eos=test.ignore_eos,
        api_key=test.api_key,
        path=test.url.path,
    )
