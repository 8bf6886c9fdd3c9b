"""What the endpoint serves, and whom it asks: models, router, controller. Knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from router.request import Request
from router.statistics import Statistics
from serving.engine.outputs import Produced
from serving.http.auth import Keys
from serving.http.call import Call
from serving.http.families import Family
from serving.http.job_desk import JobDesk
from serving.http.meters import Meters
from serving.http.routes import Route
from serving.http.settings import HttpSettings
from serving.sampling import SamplingParams
from serving.text import Tokenizer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Kind = Literal["generate", "embed", "classify"]
ExplainKind = Literal["plan", "refusals", "loans", "moves", "experts"]


class Runs(Protocol):
    """What the endpoint asks of a group; serving.worker.group.Group does it."""

    def generate(
        self, request: str, model: str, prompt: list[int], params: SamplingParams
    ) -> AsyncIterator[Produced]: ...

    async def infer(
        self, request: str, model: str, inputs: list[list[int]], kinds: list[list[int]] | None = None
    ) -> NDArray[np.float32]:
        """float32 [inputs, width]"""
        ...


class Stream(Protocol[T_co]):
    """What comes of a request."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    async def aclose(self) -> None:
        """Give the request up."""
        ...

    async def finish(self) -> None:
        """It is answered: whatever more the group would yield is not wanted."""
        ...

    def suffice(self) -> None:
        """As `finish`, for who cannot wait: its iterator is to be cancelled."""
        ...


class Submits(Protocol):
    """The router: admits a request, chooses its group, and lets it run there. NotServed says why it does not."""

    @property
    def statistics(self) -> Statistics:
        """Who was in time."""
        ...

    def submit(self, request: Request, run: Callable[[Any], AsyncIterator[T]]) -> Stream[T]:
        """What `run` gives on the group chosen (it may be called again on another, before its first item)."""
        ...


class Admin(Protocol):
    """The controller, as far as /admin needs it. An InputError says what is wrong with a plan."""

    async def plan(self) -> Any: ...

    async def apply_plan(self, document: Mapping[str, Any]) -> Any: ...

    async def explain(self, kind: ExplainKind) -> Any: ...

    async def status(self) -> Any: ...

    async def suggest(self) -> Any:
        """Look at once whether another plan were better."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model as requests see it."""

    name: str
    kind: Kind
    tokenizer: Tokenizer
    max_positions: int
    """Tokens of prompt and answer together."""
    vocabulary: int
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds."""
    state: Callable[[], str] = lambda: "ready"
    """Such as ready, loading, parked."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Sampling knobs (temperature, top_p, top_k, ...) of requests that do not name them."""
    width: int = -1
    """Numbers in a one-pass answer; -1 when not known beforehand."""
    labels: Sequence[str] = ()
    """Of a classifier."""

    @property
    def is_generating(self) -> bool:
        return self.kind == "generate"


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything `make_app` is handed."""

    router: Submits
    models: Mapping[str, ServedModel]
    settings: HttpSettings = field(default_factory=HttpSettings)
    keys: Keys = field(default_factory=Keys)
    figures: Callable[[], Iterable[Family]] = tuple
    """Further metrics, read when they are asked for: who has which device, how busy groups are."""
    add_counts: Callable[[Meters], None] = lambda meters: None
    """Adds what front ends have counted."""
    unready: Callable[[], Mapping[str, str]] = dict
    """Each model that cannot be served at the moment, and why; empty when all can."""
    admin: Admin | None = None
    jobs: JobDesk | None = None
    """The training queue, where there is one."""
    pages: Callable[[Meters, Callable[[Call], Any]], Iterable[Route]] = lambda meters, explain: ()
    """Further routes, for people: from what is counted, and from what answers with explanations."""
    listen: str = "127.0.0.1"
    """The address clients reach it by."""
