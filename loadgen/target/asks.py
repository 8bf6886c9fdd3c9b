"""What is sent for each request of a demand: route, headers, body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from loadgen import checks
from loadgen.demand import Demand
from loadgen.errors import TrafficError
from loadgen.results.goals import Goal
from loadgen.target.prompts import Prompts

Api = Literal["completions", "chat"]
ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embed": "/v1/embeddings"}


def check_api(text: str) -> Api:
    if text == "completions":
        return "completions"
    if text == "chat":
        return "chat"
    raise TrafficError(f"--api: {checks.shown(text)} is unknown; give completions or chat")


@dataclass(frozen=True, slots=True)
class Ask:
    path: str
    headers: Mapping[str, str]
    body: bytes
    streams: bool


class Asks:
    """Makes the request of any row of a demand, always the same for the same row."""

    def __init__(
        self,
        demand: Demand,
        prompts: Sequence[Prompts],
        slo: Sequence[Goal],
        *,
        api: Api = "completions",
        stream: bool = True,
        ignore_eos: bool = True,
        api_key: str = "",
        path: str = "",
    ) -> None:
        """`prompts` and `slo` by model; `path` goes before the routes."""
        self._demand, self._prompts = demand, prompts
        self._api, self._stream, self._path = api, stream, path
        self._extra = {"ignore_eos": True} if ignore_eos else {}
        shared = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._headers = [shared | goal.headers for goal in slo]

    def make(self, row: int) -> Ask:
        demand, index = self._demand, int(self._demand.model[row])
        model, tokens = demand.models[index], int(demand.prompt_tokens[row])
        body: dict[str, object] = {"model": model.name}
        if not model.generates:
            body["input"] = self._prompt(index, tokens, row)
            return Ask(self._path + ROUTES["embed"], self._headers[index], msgspec.json.encode(body), False)
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": self._prompts[index].text(tokens, row)}]
        else:
            body["prompt"] = self._prompt(index, tokens, row)
        body |= {"max_tokens": int(demand.output_tokens[row]), **self._extra}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Ask(self._path + ROUTES[self._api], self._headers[index], msgspec.json.encode(body), self._stream)

    def _prompt(self, index: int, tokens: int, row: int) -> list[int] | str:
        prompts = self._prompts[index]
        return prompts.text(tokens, row) if prompts.pool is None else prompts.ids(tokens, row)
