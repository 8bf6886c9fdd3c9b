"""What a load test sends: when, to which model, with how many tokens. Made whole before the first request goes out, and
dealt to any number of senders by index, so that what they send together is the same whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen import checks, option_text
from loadgen.arrivals import Times
from loadgen.errors import NoRequestsError, TrafficError
from loadgen.named_traces import find_trace
from loadgen.servegen import read_servegen, read_servegen_tokens
from loadgen.spec import traffic_from_spec
from loadgen.stages import Stage, stage_seed, stages_from
from loadgen.streams import token_stream
from loadgen.target.models import TargetModel
from loadgen.tokens import Counts, TokenModel
from loadgen.traces import npz_fields
from loadgen.traffic_options import DURATION, OUTPUT_TOKENS, PROMPT_TOKENS, TrafficOptions
from loadgen.workload import Arrivals

_OPTIONS = {
    "start": "--trace-start",
    "duration": "--duration",
    "rate_scale": "--rate-scale",
    "cv_scale": "--cv-scale",
}
"""By the part of a replay's description that each becomes."""


@dataclass(frozen=True, eq=False)
class Demand:
    """Arrays of one length, by arrival. `stage` is an index into `stages`."""

    models: tuple[TargetModel, ...]
    arrival_s: Times
    model: NDArray[np.int32]
    prompt_tokens: Counts
    output_tokens: Counts
    stage: NDArray[np.int32]
    stages: tuple[Stage, ...]
    seed: int
    asked_per_s: tuple[float, ...]
    """Rate of each model over the whole of it; of a trace, what it has."""
    shortened: int = 0
    """Requests whose tokens were cut to what their model takes."""

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def duration_s(self) -> float:
        return self.stages[-1].start_s + self.stages[-1].duration_s

    def rows_of(self, sender: int, senders: int) -> NDArray[np.int64]:
        """The requests that one of several senders sends: every so manieth."""
        return np.arange(sender, len(self), senders)


def make_demand(options: TrafficOptions, models: Sequence[TargetModel]) -> Demand:
    """`models` are those that get traffic, in the order a recorded workload counts them."""
    names = [model.name for model in models]
    stages = stages_from(options) if not options.trace else []
    if options.trace:
        parts = [_replayed(options, names)]
        stages = [_trace_stage(options, parts[0])]
        counts = np.bincount(parts[0].model, minlength=len(names))
        rates = (counts / stages[0].duration_s).tolist()
    else:
        shares = _shares(options.mix, names)
        parts = [_drawn(stage, shares, stage_seed(options.seed, at)) for at, stage in enumerate(stages)]
        mean = sum(stage.rate_per_s * stage.duration_s for stage in stages) / sum(stage.duration_s for stage in stages)
        rates = [mean * share for share in shares.values()]
    arrival = np.concatenate([stage.start_s + part.arrival for stage, part in zip(stages, parts, strict=True)])
    model = np.concatenate([part.model for part in parts])
    if not arrival.size:
        raise NoRequestsError(_why_none(options))
    prompt, output = _tokens(options, models, parts, model)
    prompt, output, shortened = _fitted(models, model, prompt, output)
    return Demand(
        models=tuple(models),
        arrival_s=arrival,
        model=model,
        prompt_tokens=prompt,
        output_tokens=output,
        stage=np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts]),
        stages=tuple(stages),
        seed=options.seed,
        asked_per_s=tuple(rates),
        shortened=shortened,
    )


def _shares(mix: str, names: Sequence[str]) -> dict[str, float]:
    """Of the rate, by model; they sum to 1. A model left out of a mix gets nothing."""
    if not mix:
        return dict.fromkeys(names, 1 / len(names))
    if "=" not in mix:
        raise TrafficError(f"--mix: {checks.shown(mix)} names no model; give NAME=SHARE for each, between commas")
    weights = {
        name: checks.positive(option_text.number(text.removesuffix("%"), "--mix"), f"--mix {name}")
        for name, text in option_text.by_model(mix, names, "--mix").items()
    }
    total = sum(weights.values())
    return {name: weights.get(name, 0.0) / total for name in names}


def _drawn(stage: Stage, shares: dict[str, float], seed: int) -> Arrivals:
    texts = option_text.by_model(stage.cv, list(shares), "--cv")
    cvs = {name: checks.cv(option_text.number(texts.get(name, "1"), "--cv"), "--cv") for name in shares}
    rates = {name: stage.rate_per_s * share for name, share in shares.items()}
    spec = {"kind": "gamma", "duration": stage.duration_s, "seed": seed, "rates": rates, "cv": cvs}
    return traffic_from_spec(spec, list(shares))


def _replayed(options: TrafficOptions, names: Sequence[str]) -> Arrivals:
    rate, cv = options.rate_scale or "1", options.cv_scale or "1"
    path = find_trace(options.trace).requests
    is_servegen = _is_servegen(path)
    if is_servegen:
        _check_clients(path, len(names))
    if options.mix and path.suffix == ".npz":
        raise TrafficError("--mix: this trace itself says what each model gets; leave it out")
    spec: dict[str, object] = {
        "kind": "replay",
        "trace": path,
        "seed": options.seed,
        "duration": option_text.seconds(options.duration or DURATION, "--duration"),
        "rate_scale": checks.positive(option_text.number(rate, "--rate-scale"), "--rate-scale", 1e6),
        "cv_scale": checks.positive(option_text.number(cv, "--cv-scale"), "--cv-scale", checks.MAX_CV),
    }
    if options.trace_start:
        spec["start"] = option_text.seconds(options.trace_start, "--trace-start", from_zero=True)
    if options.mix:
        spec["split"] = {"shares": list(_shares(options.mix, names).values())}
    if not is_servegen:
        spec["resample"] = float(rate) != 1 or float(cv) != 1
    with _naming_options():
        return traffic_from_spec(spec, names)


@contextmanager
def _naming_options() -> Iterator[None]:
    """What is wrong with a part of the description is told of the option that it came from."""
    try:
        yield
    except TrafficError as error:
        part, colon, rest = str(error).partition(": ")
        raise TrafficError(f"{_OPTIONS.get(part, part)}{colon}{rest}") from None


def _check_clients(path: Path, models: int) -> None:
    clients = read_servegen(path).client_id.size
    if models > clients:
        raise TrafficError(f"--models: {models} models get traffic, but the trace has {clients} clients; name fewer")


def _why_none(options: TrafficOptions) -> str:
    if not options.trace:
        return "--rate: no request falls into the duration; give a higher rate or a longer --duration"
    return "--trace: has no request in the part that is played; give another --trace-start or a longer --duration"


def _trace_stage(options: TrafficOptions, part: Arrivals) -> Stage:
    duration = option_text.seconds(options.duration or DURATION, "--duration")
    return Stage(0.0, duration, len(part) / duration, "of the trace")


def _tokens(
    options: TrafficOptions, models: Sequence[TargetModel], parts: Sequence[Arrivals], model: NDArray[np.int32]
) -> tuple[Counts, Counts]:
    """As typed, else as recorded, else as is usual."""
    names = [one.name for one in models]
    prompt = _recorded([part.prompt_tokens for part in parts])
    output = _recorded([part.output_tokens for part in parts])
    has_recorded = bool(prompt.any())
    if not has_recorded:
        prompt, output = (np.zeros(model.size, dtype=np.int32) for _ in range(2))
    prompts = option_text.by_model(options.prompt_tokens, names, "--prompt-tokens") if options.prompt_tokens else {}
    outputs = option_text.by_model(options.output_tokens, names, "--output-tokens") if options.output_tokens else {}
    clients = _client_tokens(options, names)
    for index, name in enumerate(names):
        rows = np.flatnonzero(model == index)
        prompt_rng, output_rng, pair_rng = token_stream(options.seed, index).spawn(3)
        if index in clients:
            pair = clients[index].draw(rows.size, pair_rng)
            prompt[rows], output[rows] = pair.prompt, pair.output
        keeps = has_recorded or index in clients
        if name in prompts or not keeps:
            text = prompts.get(name, PROMPT_TOKENS)
            prompt[rows] = option_text.length(text, "--prompt-tokens").draw(rows.size, prompt_rng)
        if name in outputs or not keeps:
            text = outputs.get(name, OUTPUT_TOKENS)
            output[rows] = option_text.length(text, "--output-tokens").draw(rows.size, output_rng)
        if not models[index].generates:
            output[rows] = 0
    return prompt, output


def _recorded(columns: Sequence[Counts | None]) -> Counts:
    known = [column for column in columns if column is not None]
    return np.concatenate(known).copy() if known else np.empty(0, dtype=np.int32)


def _client_tokens(options: TrafficOptions, names: Sequence[str]) -> dict[int, TokenModel]:
    """Of a ServeGen trace: model i plays the i-th client of it, with that client's lengths."""
    if not options.trace:
        return {}
    files = find_trace(options.trace)
    if files.tokens is None or not files.tokens.is_file():
        return {}
    lengths = read_servegen_tokens(files.tokens)
    clients = read_servegen(files.requests).client_id[: len(names)]
    return {index: lengths[int(client)] for index, client in enumerate(clients) if int(client) in lengths}


def _is_servegen(path: Path) -> bool:
    return path.suffix == ".npz" and bool(npz_fields(path, (), ("window_start_s",)))


def _fitted(
    models: Sequence[TargetModel], model: NDArray[np.int32], prompt: Counts, output: Counts
) -> tuple[Counts, Counts, int]:
    """At least a token each, and together no more than the model takes."""
    most = np.array([one.max_tokens or np.iinfo(np.int32).max for one in models], dtype=np.int64)[model]
    generates = np.array([one.generates for one in models])[model]
    new_output = np.where(generates, np.clip(output, 1, np.maximum(most - 1, 1)), 0)
    new_prompt = np.clip(prompt, 1, np.maximum(most - new_output, 1))
    shortened = int(np.count_nonzero((new_output < output) | (new_prompt < prompt)))
    return new_prompt.astype(np.int32), new_output.astype(np.int32), shortened
