"""From the description of a replay to a workload: which trace, which part of it, which requests are whose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.arrivals import Times
from loadgen.errors import TrafficError
from loadgen.replay import replay
from loadgen.servegen import ServeGen, read_servegen
from loadgen.splits import split
from loadgen.streams import deal_stream, stream, token_stream
from loadgen.tokens import TokenCounts, TokenModel
from loadgen.traces import npz_fields, read_azure, read_requests, read_workload
from loadgen.workload import Arrivals, merge

_SHARED_KEYS = ("kind", "trace", "seed", "start", "duration", "rate_scale", "cv_scale", "tokens")
_RECORDED_KEYS = (*_SHARED_KEYS, "window", "resample")
_SERVEGEN_KEYS = (*_SHARED_KEYS, "clients")

REPLAY_KEYS = (*_RECORDED_KEYS, "split", "clients")


@dataclass(frozen=True, eq=False)
class _Recorded:
    """The requests of one model: seconds from the start of the replay, and tokens if the trace has them."""

    arrival_s: Times
    tokens: TokenCounts | None


def replay_from_spec(
    spec: Mapping[str, object],
    models: Sequence[str],
    seed: int,
    folder: Path,
    drawn: Mapping[int, TokenModel],
) -> Arrivals:
    """`trace` is a path, or {model: path}; `drawn` token models go before the trace's own token counts."""
    if "trace" not in spec:
        raise TrafficError("trace: missing; replay needs the path of a trace")
    start = checks.within(spec.get("start", 0), "start", 0, checks.MAX_DURATION_S)
    trace = spec["trace"]
    if isinstance(trace, Mapping):
        checks.known_keys(spec, _RECORDED_KEYS, "")
        recorded = _by_model(checks.mapping(trace, "trace"), models, folder, start)
        return _replay_recorded(spec, recorded, seed, drawn)
    path = checks.path(trace, "trace", folder)
    if path.suffix == ".npz" and npz_fields(path, (), ("window_start_s",)):
        checks.known_keys(spec, _SERVEGEN_KEYS, "")
        return _replay_servegen(spec, read_servegen(path), models, seed, start, drawn)
    if path.suffix == ".npz":
        checks.known_keys(spec, _RECORDED_KEYS, "")
        whole = read_workload(path, len(models))
        owner = whole.model.astype(np.int64)
    else:
        checks.known_keys(spec, (*_RECORDED_KEYS, "split"), "")
        whole = read_azure(path)
        share = split(spec.get("split", "uniform"), 1.0, len(models))
        # The trace names no model: each request goes to a model at random, in proportion to its share.
        owner = np.searchsorted(np.cumsum(share)[:-1], deal_stream(seed).random(len(whole)), side="right")
    recorded = [_part(whole, owner == i, start) for i in range(len(models))]
    return _replay_recorded(spec, recorded, seed, drawn)


def _by_model(trace: Mapping[str, object], models: Sequence[str], folder: Path, start_s: float) -> list[_Recorded]:
    checks.known_models(trace, models, "trace")
    recorded = []
    for name in models:
        if name in trace:
            whole = read_requests(checks.path(trace[name], f"trace.{name}", folder))
            recorded.append(_part(whole, np.ones(len(whole), dtype=np.bool_), start_s))
        else:
            recorded.append(_Recorded(np.empty(0), None))
    return recorded


def _part(whole: Arrivals, mine: NDArray[np.bool_], start_s: float) -> _Recorded:
    rows = np.flatnonzero(mine & (whole.arrival >= start_s))
    tokens = None
    if whole.prompt_tokens is not None and whole.output_tokens is not None:
        tokens = TokenCounts(whole.prompt_tokens, whole.output_tokens).rows(rows)
    return _Recorded(whole.arrival[rows] - start_s, tokens)


def _replay_recorded(
    spec: Mapping[str, object], recorded: Sequence[_Recorded], seed: int, drawn: Mapping[int, TokenModel]
) -> Arrivals:
    resample = spec.get("resample", True)
    if not isinstance(resample, bool):
        raise TrafficError(f"resample: {checks.shown(resample)} is neither true nor false; give one of them")
    duration = _duration(spec, recorded)
    rate_scale = checks.within(spec.get("rate_scale", 1), "rate_scale", 0, 1e6)
    checks.not_absurd(rate_scale * sum(part.arrival_s.size for part in recorded), "rate_scale")
    times: list[Times] = []
    tokens: list[TokenCounts | None] = []
    for i, part in enumerate(recorded):
        replayed = replay(
            part.arrival_s,
            duration,
            stream(seed, i),
            window_s=checks.number(spec.get("window", 60), "window"),
            rate_scale=rate_scale,
            cv_scale=checks.number(spec.get("cv_scale", 1), "cv_scale"),
            resample=resample,
        )
        times.append(replayed.arrival_s)
        if i in drawn:
            tokens.append(drawn[i].draw(replayed.row.size, token_stream(seed, i)))
        else:
            tokens.append(part.tokens.rows(replayed.row) if part.tokens else None)
    return merge(times, tokens)


def _duration(spec: Mapping[str, object], recorded: Sequence[_Recorded]) -> float:
    """As given, else the end of the trace: its last request and one mean gap, which keeps the mean rate."""
    every = np.concatenate([part.arrival_s for part in recorded])
    if every.size == 0:
        raise TrafficError("start: the trace has no request from there on; give an earlier start")
    if "duration" in spec:
        return checks.duration(spec["duration"])
    last = float(every.max())
    if every.size < 2 or last == 0:
        raise TrafficError("duration: cannot be told from so short a trace; give the seconds to replay")
    return last + last / (every.size - 1)


def _replay_servegen(
    spec: Mapping[str, object],
    trace: ServeGen,
    models: Sequence[str],
    seed: int,
    start_s: float,
    drawn: Mapping[int, TokenModel],
) -> Arrivals:
    """Model i plays the i-th client of the trace, unless `clients` {model: client id} says which."""
    if "clients" in spec:
        given = checks.mapping(spec["clients"], "clients")
        checks.known_models(given, models, "clients")
        ids = {name: checks.whole(given[name], f"clients.{name}", 0, 2**31) for name in given}
    elif len(models) > trace.client_id.size:
        raise TrafficError(f"trace: has {trace.client_id.size} clients for {len(models)} models; give clients")
    else:
        ids = {name: int(client) for name, client in zip(models, trace.client_id, strict=False)}
    duration = spec.get("duration", trace.duration_s - start_s)
    times: list[Times] = []
    tokens: list[TokenCounts | None] = []
    for i, name in enumerate(models):
        arrival = np.empty(0)
        if name in ids:
            arrival = trace.arrivals(
                ids[name],
                start_s,
                checks.duration(duration),
                stream(seed, i),
                rate_scale=checks.number(spec.get("rate_scale", 1), "rate_scale"),
                cv_scale=checks.number(spec.get("cv_scale", 1), "cv_scale"),
            )
        times.append(arrival)
        checks.not_absurd(sum(part.size for part in times), "duration")
        tokens.append(drawn[i].draw(arrival.size, token_stream(seed, i)) if i in drawn else None)
    return merge(times, tokens)
