"""Where traffic comes from: arrival processes, traces, token counts. Needs numpy, and nothing of ours."""

from loadgen.arrivals import gamma_arrivals, poisson_arrivals, weibull_arrivals
from loadgen.curves import burst_arrivals, day_arrivals, on_off_arrivals
from loadgen.errors import TrafficError
from loadgen.replay import Replayed, replay
from loadgen.servegen import ServeGen, read_servegen, read_servegen_tokens
from loadgen.spec import traffic_from_spec
from loadgen.splits import power_law_split, uniform_split
from loadgen.tokens import FromTrace, Independent, LogNormal, Quantiles, TokenCounts, TokenModel
from loadgen.traces import read_azure, read_workload
from loadgen.workload import Arrivals

__all__ = [
    "Arrivals",
    "FromTrace",
    "Independent",
    "LogNormal",
    "Quantiles",
    "Replayed",
    "ServeGen",
    "TokenCounts",
    "TokenModel",
    "TrafficError",
    "burst_arrivals",
    "day_arrivals",
    "gamma_arrivals",
    "on_off_arrivals",
    "poisson_arrivals",
    "power_law_split",
    "read_azure",
    "read_servegen",
    "read_servegen_tokens",
    "read_workload",
    "replay",
    "traffic_from_spec",
    "uniform_split",
    "weibull_arrivals",
]
