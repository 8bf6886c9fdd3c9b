"""Our options among Locust's: from its command line, the environment (PENSTOCK_LOAD_RATE, ...) and its web form."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from loadgen.load_test import LoadTest
from loadgen.option_text import whole
from loadgen.results.goals import goodput_goal
from loadgen.target.asks import check_api
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions

HELP = {
    "rate": "Requests a second, of all models together (10).",
    "cv": "Of a model's gaps, or NAME=CV,... (1: Poisson).",
    "duration": "How long to send, or each stage (60s).",
    "models": "NAME,... (all that are served).",
    "mix": "NAME=SHARE,... of the rate (the same for all).",
    "slo": "200ms, or TTFT/TPOT such as 500ms/50ms, or NAME=...; the server is told.",
    "goodput": "Goals such as ttft:500,tpot:50,e2el:2000, in ms.",
    "prompt_tokens": "128, or mean~cv:min-max such as 128~0.8:16-1024, or NAME=... (128).",
    "output_tokens": "In the same form (32).",
    "trace": "Replay a trace: a file, azure-code, azure-conv or servegen.",
    "trace_start": "Begin so far into the trace.",
    "rate_scale": "Times the rate of the trace.",
    "cv_scale": "Times the cv of the trace.",
    "stages": "Steps RATE[:CV[:DURATION]],... one after the other.",
    "kind": "generate or embed, or NAME=..., where the server does not say.",
    "api": "For models that generate: completions or chat.",
    "api_key": "Sent as a bearer token.",
    "seed": "Same seed: same requests at the same times.",
    "summary": "FILE.json: write the figures of the test, as penstock load --json prints them.",
}
_DEFAULTS = {"api": "completions", "seed": "0"}
_NOT_TRAFFIC = ("goodput", "api", "api_key", "seed", "summary")


def add_arguments(parser: Any) -> None:
    """All are texts: so they come back from the web form too."""
    for name, text in HELP.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=_DEFAULTS.get(name, ""),
            env_var=f"PENSTOCK_LOAD_{name.upper()}",
            help=text,
            is_secret=name == "api_key",
            include_in_web_ui=name != "summary",
        )


def given_arguments(options: Namespace) -> dict[str, str]:
    return {name: str(getattr(options, name, None) or _DEFAULTS.get(name, "")) for name in HELP}


def load_test_from(given: Mapping[str, str], host: str) -> LoadTest:
    """TrafficError when one of them is wrong."""
    traffic = {name: given[name] for name in HELP if name not in _NOT_TRAFFIC}
    return LoadTest(
        url=parse_url(host),
        traffic=TrafficOptions(seed=whole(given["seed"], "--seed", 0, 2**32 - 1), **traffic),
        goodput=goodput_goal([given["goodput"]]),
        api=check_api(given["api"]),
        api_key=given["api_key"],
    )
