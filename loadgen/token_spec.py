"""From the `tokens` of a workload's description to a token model for each model that generates.

    {"prompt": LENGTHS, "output": LENGTHS}   LENGTHS: a number, or {"mean", "cv", "min", "max"}
    {"trace": "azure.csv.gz"}                pairs drawn from a trace's requests
    {"servegen": "tokens.csv", "client": 3}  quantiles of a ServeGen client
One of these for all models, or {model: one of these}; a model left out does not generate.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadgen import checks
from loadgen.errors import TrafficError
from loadgen.servegen import read_servegen_tokens
from loadgen.tokens import MOST_TOKENS, FromTrace, Independent, LogNormal, TokenCounts, TokenModel
from loadgen.traces import read_requests

_FORMS = (("prompt", "output"), ("trace",), ("servegen", "client"))
_WORDS = {word for form in _FORMS for word in form}


def token_models(spec: object, models: Sequence[str], folder: Path) -> dict[int, TokenModel]:
    """Token model by index of the model; empty when `spec` is None."""
    if spec is None:
        return {}
    given = checks.mapping(spec, "tokens")
    if set(given) & _WORDS and not set(given) <= set(models):
        shared = _token_model(given, folder, "tokens")
        return dict.fromkeys(range(len(models)), shared)
    checks.known_models(given, models, "tokens")
    return {
        i: _token_model(checks.mapping(given[name], f"tokens.{name}"), folder, f"tokens.{name}")
        for i, name in enumerate(models)
        if name in given
    }


def lengths(spec: object, where: str) -> LogNormal:
    if not isinstance(spec, Mapping):
        return LogNormal(checks.positive(spec, where, MOST_TOKENS))
    given = checks.mapping(spec, where)
    checks.known_keys(given, ("mean", "cv", "min", "max"), where)
    if "mean" not in given:
        raise TrafficError(f"{where}.mean: missing; give the mean number of tokens")
    low = checks.whole(given.get("min", 1), f"{where}.min", 0, MOST_TOKENS)
    return LogNormal(
        mean=checks.positive(given["mean"], f"{where}.mean", MOST_TOKENS),
        cv=checks.within(given.get("cv", 0), f"{where}.cv", 0, checks.MAX_CV),
        low=low,
        high=checks.whole(given.get("max", MOST_TOKENS), f"{where}.max", low, MOST_TOKENS),
    )


def _token_model(given: Mapping[str, object], folder: Path, where: str) -> TokenModel:
    form = next((form for form in _FORMS if set(form) == set(given)), None)
    if form is None:
        raise TrafficError(
            f"{where}: has {', '.join(sorted(given)) or 'nothing'}; "
            "give prompt and output, or trace, or servegen and client"
        )
    if "trace" in given:
        path = checks.path(given["trace"], f"{where}.trace", folder)
        trace = read_requests(path)
        if trace.prompt_tokens is None or trace.output_tokens is None:
            raise TrafficError(f"{path}: has no token counts to draw from; give a trace of a generating model")
        return FromTrace(TokenCounts(trace.prompt_tokens, trace.output_tokens))
    if "servegen" in given:
        path = checks.path(given["servegen"], f"{where}.servegen", folder)
        client = checks.whole(given["client"], f"{where}.client", 0, MOST_TOKENS)
        clients = read_servegen_tokens(path)
        if client not in clients:
            raise TrafficError(f"{where}.client: {client} is not in {path}; give one of its {len(clients)} clients")
        return clients[client]
    return Independent(lengths(given["prompt"], f"{where}.prompt"), lengths(given["output"], f"{where}.output"))
