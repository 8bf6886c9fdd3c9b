"""Our options among Locust's: from its command line, the environment (PENSTOCK_LOAD_RATE, ...) and its web form."""

from __future__ import annotations

import os
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, fields
from inspect import signature
from types import MappingProxyType
from typing import Any, get_type_hints

from loadgen.cli import load
from loadgen.client.limits import Limits
from loadgen.client.open_file_limit import room_for
from loadgen.load_test import LoadTest
from loadgen.option_text import seconds, whole
from loadgen.results.goals import goodput_goal
from loadgen.target.asks import check_api
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions

_TRAFFIC = tuple(field.name for field in fields(TrafficOptions) if field.name != "seed")
_OTHERS = ("seed", "stream", "api", "ignore_eos", "api_key", "timeout", "max_open")
_MOST_OPEN = 10**6
_API_KEY = "PENSTOCK_API_KEY"
"""Where `penstock load` looks for the key."""


@dataclass(frozen=True)
class Option:
    help: str
    default: str | bool = ""


def _of_command() -> dict[str, Option]:
    """Options of `penstock load`, as it explains them."""
    hints, parameters = get_type_hints(load, include_extras=True), signature(load).parameters
    found = {}
    for name in (*_TRAFFIC, *_OTHERS):
        default = parameters[name].default
        told = hints[name].__metadata__[0].help.replace("%", "%%")
        found[name] = Option(told, default if isinstance(default, bool) else str(default))
    return found


OPTIONS: Mapping[str, Option] = MappingProxyType(
    _of_command()
    | {
        "goodput": Option("Goals such as ttft:500,tpot:50,e2el:2000, in ms."),
        "summary": Option("FILE.json: write the figures of the test, as penstock load --json prints them."),
    }
)


def add_arguments(parser: Any) -> None:
    """Texts and switches: so they come back from the web form too."""
    for name, option in OPTIONS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=option.default,
            env_var=f"PENSTOCK_LOAD_{name.upper()}",
            help=option.help,
            is_secret=name == "api_key",
            include_in_web_ui=name != "summary",
            **({"action": BooleanOptionalAction} if isinstance(option.default, bool) else {}),
        )


def given_arguments(options: Namespace, form: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """As texts: what the form says, else what was typed, else the default."""
    given = {}
    for name, option in OPTIONS.items():
        value = form.get(name, getattr(options, name, None))
        value = option.default if value in (None, "") else value
        given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    given["api_key"] = given["api_key"] or os.environ.get(_API_KEY, "")
    return given


def load_test_from(given: Mapping[str, str], host: str) -> LoadTest:
    """TrafficError when one of them is wrong."""
    most = whole(given["max_open"], "--max-open", 1, _MOST_OPEN)
    return LoadTest(
        url=parse_url(host, "--host"),
        traffic=TrafficOptions(
            seed=whole(given["seed"], "--seed", 0, 2**32 - 1), **{name: given[name] for name in _TRAFFIC}
        ),
        goodput=goodput_goal([given["goodput"]]),
        api=check_api(given["api"]),
        stream=given["stream"] == "true",
        ignore_eos=given["ignore_eos"] == "true",
        api_key=given["api_key"],
        limits=Limits(timeout_s=seconds(given["timeout"], "--timeout"), open=room_for(most)),
    )
