"""From the `workload` part of a problem to a workload: which process, at what rate, with what tokens.

Model i draws from its own stream, seeded with [seed, i]; its arrivals do not depend on the other models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen import checks
from loadgen.arrivals import Times, gamma_arrivals
from loadgen.curves import burst_arrivals, day_arrivals, on_off_arrivals
from loadgen.errors import TrafficError
from loadgen.replay_spec import REPLAY_KEYS, replay_from_spec
from loadgen.splits import split
from loadgen.streams import check_seed, stream, token_stream
from loadgen.token_spec import token_models
from loadgen.workload import Arrivals, merge

_RATE_KEYS = ("kind", "duration", "seed", "tokens", "rates", "total_rate", "split")
_CV_KEYS = ("cv", "burstiness")
# Each form of traffic: what draws it, and its keys with the argument they fill and the default.
_FORMS: Mapping[str, tuple[Callable[..., Times], Mapping[str, tuple[str, float]]]] = {
    "gamma": (gamma_arrivals, {}),
    "poisson": (gamma_arrivals, {}),
    "states": (
        on_off_arrivals,
        {"mean_on": ("mean_on_s", 0.0), "mean_off": ("mean_off_s", 0.0), "off_level": ("off_level", 0.0)},
    ),
    "bursts": (
        burst_arrivals,
        {
            "window": ("window_s", 0.0),
            "p_on": ("p_on", 0.0),
            "pareto": ("pareto", 1.5),
            "cap": ("cap", 6.0),
            "off_level": ("off_level", 0.0),
        },
    ),
    "day_curve": (
        day_arrivals,
        {"period": ("period_s", 86400.0), "amplitude": ("amplitude", 0.5), "phase": ("phase", 0.0)},
    ),
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "gamma": (*_RATE_KEYS, *_CV_KEYS),
    "poisson": _RATE_KEYS,
    "on_off": (*_RATE_KEYS, *_CV_KEYS, *_FORMS["states"][1], *_FORMS["bursts"][1]),
    "day_curve": (*_RATE_KEYS, *_CV_KEYS, *_FORMS["day_curve"][1]),
    "replay": REPLAY_KEYS,
}


@dataclass(frozen=True)
class _Model:
    """One model's traffic: its long-run rate (requests/s) and the cv of its gaps."""

    name: str
    rate_per_s: float
    cv: float


_Process = Callable[[_Model, float, np.random.Generator], Times]


def traffic_from_spec(spec: Mapping[str, object], models: Sequence[str], base: Path | None = None) -> Arrivals:
    """The workload that `spec` describes for `models`. Paths in it are relative to `base`."""
    spec = checks.mapping(spec, "workload")
    _check_names(models)
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in KEYS:
        raise TrafficError(f"kind: {checks.shown(kind)} is unknown; give one of {', '.join(sorted(KEYS))}")
    checks.known_keys(spec, KEYS[kind], "")
    seed = check_seed(spec.get("seed", 0))
    folder = base if base is not None else Path()
    drawn = token_models(spec.get("tokens"), models, folder)
    if kind == "replay":
        return replay_from_spec(spec, models, seed, folder, drawn)
    if "duration" not in spec:
        raise TrafficError("duration: missing; give the seconds of traffic to make")
    duration = checks.duration(spec["duration"])
    traffic = _models(spec, models)
    checks.not_absurd(sum(model.rate_per_s for model in traffic) * duration, "rates x duration")
    process = _process(kind, spec, models)
    times = [process(model, duration, stream(seed, i)) for i, model in enumerate(traffic)]
    tokens = [drawn[i].draw(part.size, token_stream(seed, i)) if i in drawn else None for i, part in enumerate(times)]
    return merge(times, tokens)


def per_model(value: object, models: Sequence[str], where: str, default: float) -> dict[str, float]:
    """A number for every model, or {model: number}; `default` when `value` is None."""
    if value is None:
        return dict.fromkeys(models, default)
    if not isinstance(value, Mapping):
        return dict.fromkeys(models, checks.number(value, where, "a number, or {model: number}"))
    given = checks.mapping(value, where)
    checks.known_models(given, models, where)
    missing = [name for name in models if name not in given]
    if missing:
        raise TrafficError(f"{where}: nothing for model {missing[0]}; give a number for each model, or one for all")
    return {name: checks.number(number, f"{where}.{name}") for name, number in given.items()}


def _models(spec: Mapping[str, object], models: Sequence[str]) -> list[_Model]:
    if ("rates" in spec) == ("total_rate" in spec):
        raise TrafficError("rates, total_rate: give one of the two")
    if "rates" in spec:
        if "split" in spec:
            raise TrafficError("split: shares out total_rate, but rates are given; leave one out")
        given = checks.mapping(spec["rates"], "rates")
        checks.known_models(given, models, "rates")
        rates = [checks.rate(given.get(name, 0), f"rates.{name}") for name in models]
    else:
        total = checks.rate(spec["total_rate"], "total_rate")
        rates = [float(part) for part in split(spec.get("split", "uniform"), total, len(models))]
    cvs = _cvs(spec, models)
    return [_Model(name, rate, cvs[name]) for name, rate in zip(models, rates, strict=True)]


def _cvs(spec: Mapping[str, object], models: Sequence[str]) -> dict[str, float]:
    if "cv" in spec and "burstiness" in spec:
        raise TrafficError("cv, burstiness: both name the spread of gaps (burstiness = 1/cv^2); give one of the two")
    if "burstiness" in spec:
        # burstiness of 1e-6 is a cv of 1000, the largest there is
        shapes = per_model(spec["burstiness"], models, "burstiness", 1.0)
        return {name: checks.within(b, "burstiness", 1e-6, 1e12) ** -0.5 for name, b in shapes.items()}
    return {name: checks.cv(cv) for name, cv in per_model(spec.get("cv"), models, "cv", 1.0).items()}


def _process(kind: str, spec: Mapping[str, object], models: Sequence[str]) -> _Process:
    form = kind
    if kind == "on_off":
        form = "bursts" if _is_windowed(spec) else "states"
    draw, parameters = _FORMS[form]
    values = {
        argument: per_model(spec.get(key), models, key, default) for key, (argument, default) in parameters.items()
    }

    def process(model: _Model, duration_s: float, rng: np.random.Generator) -> Times:
        arguments = {argument: value[model.name] for argument, value in values.items()}
        return draw(model.rate_per_s, model.cv, duration_s, rng, **arguments)

    return process


def _is_windowed(spec: Mapping[str, object]) -> bool:
    """Whether on_off means windows (window, p_on) or states of random length (mean_on, mean_off)."""
    states = [key for key in ("mean_on", "mean_off") if key in spec]
    windows = [key for key in ("window", "p_on", "pareto", "cap") if key in spec]
    if bool(states) == bool(windows):
        raise TrafficError("on_off: give mean_on and mean_off, or window and p_on (with pareto and cap), not both")
    needed = ("mean_on", "mean_off") if states else ("window", "p_on")
    for key in needed:
        if key not in spec:
            raise TrafficError(f"{key}: missing; on_off needs {needed[0]} and {needed[1]}")
    return bool(windows)


def _check_names(models: Sequence[str]) -> None:
    if isinstance(models, str) or not models:
        raise TrafficError("models: none given; give at least one name")
    if len(set(models)) < len(models):
        twice = max(models, key=list(models).count)
        raise TrafficError(f"models: {twice} is there twice; give each name once")
