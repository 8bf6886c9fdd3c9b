"""config.yaml: the devices, the models with their files and goals, and how to serve them. What `penstock profile` and
`penstock serve` read. Knows what may stand there; does not look into the files it names.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from placement.cluster import Cluster
from placement.errors import InputError
from placement.files import read_document
from placement.problem import MAX_MODELS, MAX_SLO_S, MAX_WEIGHT, Objective, Slo
from placement.rules import Rule
from placement.units import Bytes, Seconds, Share, parse_seconds
from serving.worker.foreign import EngineConfig, parse_engine

SQLITE = "sqlite:///"

Tokens = Annotated[int, Meta(ge=1, le=10**8)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TrafficConfig(_Part, frozen=True):
    """What is expected of a model's traffic before any has come; what comes is learned from."""

    rate: float
    """Requests per second."""
    cv: float = 1.0
    """Coefficient of variation of the gaps between them: 1 is Poisson, more is burstier."""
    prompt_tokens: Tokens | None = None
    """Of a usual request."""
    output_tokens: Tokens | None = None
    """Of a usual answer of a model that generates."""

    def __post_init__(self) -> None:
        _check(0 <= self.rate <= 1e6, "rate", self.rate, "requests per second, from 0 to 1000000")
        _check(0 < self.cv <= 100, "cv", self.cv, "above 0 and at most 100")


class ModelEntry(_Part, frozen=True):
    """One model to serve."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    """What requests call it."""
    path: Annotated[str, Meta(min_length=1)]
    """Directory in Hugging Face layout: config.json, *.safetensors, tokenizer.json."""
    slo: float | str | dict[str, float | str]
    """Seconds end to end, or {ttft, tpot} of a model that generates."""
    target: Share = Share(0.99)
    """The attainment it is owed."""
    weight: float = 1.0
    """Its worth against the others."""
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    """What it computes in; on CPU fp32 or int8."""
    graphs: bool = False
    """Record decoding steps as CUDA graphs; on GPUs, where one device has a stage to itself."""
    source: str | None = None
    """Where the directory comes from on a machine that lacks it: a URL that fsspec reads, such as s3://bucket/chat."""
    profile: str | None = None
    """Its name in `profiles`; its own when absent."""
    traffic: TrafficConfig | None = None
    engine: str | EngineConfig | None = None
    """Who computes it: our own workers, `vllm`, or any server of OpenAI's API (docs/engines.md)."""

    def __post_init__(self) -> None:
        if self.foreign is not None and self.graphs:
            raise ValueError("graphs are our own engine's; leave `graphs` out, and see to them in `engine`")
        if not self.name.isprintable():
            raise ValueError(f"name {self.name!r} has characters that cannot be printed")
        _check(0 < self.target <= 1, "target", self.target, "above 0 and at most 1")
        _check(1 / MAX_WEIGHT <= self.weight <= MAX_WEIGHT, "weight", self.weight, f"at most {MAX_WEIGHT:g}")
        _ = self.goal

    @property
    def foreign(self) -> EngineConfig | None:
        """The engine, where it is not our own."""
        return parse_engine(self.engine)

    @property
    def goal(self) -> Slo:
        parts = self.slo if isinstance(self.slo, dict) else {"end_to_end": self.slo}
        if isinstance(self.slo, dict) and (not parts or set(parts) - {"ttft", "tpot"}):
            raise ValueError(f"slo has {sorted(parts)}; expected seconds, or {{ttft, tpot}}")
        try:
            seconds = {name: float(parse_seconds(part)) for name, part in parts.items()}
        except ValueError as error:
            raise ValueError(f"slo: {error}") from error
        for part in seconds.values():
            _check(0 < part <= MAX_SLO_S, "slo", part, f"above 0 and at most {MAX_SLO_S:g} seconds")
        return Slo(**seconds)


class LimitsConfig(_Part, frozen=True):
    """What one client may ask for."""

    body: Bytes = Bytes(4 * 2**20)
    """Largest body of an HTTP request."""
    prompt_tokens: Tokens = 4096
    """Longest prompt."""
    queue: Tokens = 1000
    """Requests that may wait, of all models; more are refused."""

    def __post_init__(self) -> None:
        _check(self.body >= 1, "body", self.body, "1 byte or more")


class LoansConfig(_Part, frozen=True):
    """When devices of serving groups are lent to training."""

    mode: Literal["off", "suggest", "apply"] = "apply"
    """suggest: say what would be lent and when; apply: lend it."""
    target: Share = Share(0.99)
    """Of requests that are in time without loans, the share that must be with them."""
    minimum: Seconds = Seconds(30)
    """A loan that is not expected to last so long is not made."""

    def __post_init__(self) -> None:
        _check(0 < self.target <= 1, "target", self.target, "above 0 and at most 1")
        _check(0 <= self.minimum <= 1e6, "minimum", self.minimum, "from 0 to 1000000 seconds")


class QuotaConfig(_Part, frozen=True):
    """What one user may have in the training queue at a time; as much as there is when absent."""

    jobs: Annotated[int, Meta(ge=0, le=10**6)] | None = None
    """That have not ended."""
    devices: Annotated[int, Meta(ge=0, le=10**6)] | None = None


class TrainingConfig(_Part, frozen=True):
    """The training queue that runs on what serving does not need."""

    policy: str = "penstock"
    """Which job is served first; `penstock train policies` lists them."""
    durations: Literal["predicted", "none"] = "predicted"
    """What the policy is told of how long jobs run: what their users say, else what such jobs took; or nothing, and
    it learns from those that have ended how soon jobs end."""
    store: str = f"{SQLITE}penstock.db"
    """Where the queue is kept: sqlite:///FILE or postgresql://..."""
    loans: LoansConfig = msgspec.field(default_factory=LoansConfig)
    commands: bool = False
    """Whether jobs may run commands: whoever has the admin key can then run anything on this machine."""
    quotas: dict[str, QuotaConfig] = msgspec.field(default_factory=dict)
    """By user; `*` is for those without one of their own."""
    folder: str | None = None
    """Where jobs have their logs and checkpoints; beside the store's file when absent."""
    data: tuple[str, ...] = ()
    """Folders that built-in jobs may read texts and models from, beside the models that are served."""
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Of this controller in the store; the machine's when absent."""


class WorkersConfig(_Part, frozen=True):
    """What stands behind a device."""

    kind: Literal["real", "paced", "emulated"] = "real"
    """real: a process of its own; paced: the same, slowed down, so that many fit on few cores; emulated: no model at
    all, answers come when the profile says."""
    pace: float = 4.0
    """Of paced workers: every step takes so many times its own time."""

    def __post_init__(self) -> None:
        _check(1 <= self.pace <= 1000, "pace", self.pace, "from 1 to 1000")


class ReplanConfig(_Part, frozen=True):
    """Planning anew when traffic is no longer what the plan was made for."""

    mode: Literal["off", "suggest", "apply"] = "suggest"
    """suggest: say what would be better; apply: do it."""
    every: Seconds = Seconds(60)
    """Between two looks at the traffic."""
    window: Seconds = Seconds(600)
    """The traffic that counts: as far back as this."""
    requests: Tokens = 200
    """The least that must have come within the window; fewer tell nothing."""
    gain: Share = Share(0.01)
    """What a new plan must bring, in the attainment it is judged by, to be worth a change."""
    budget: Seconds = Seconds(10)
    """What a search may take, on a core that serving leaves idle."""

    def __post_init__(self) -> None:
        _check(self.every >= 1, "every", self.every, "1 second or more")
        _check(self.window >= self.every, "window", self.window, "no shorter than `every`")
        _check(0 <= self.gain < 1, "gain", self.gain, "from 0 to below 1")
        _check(0.1 <= self.budget <= 3600, "budget", self.budget, "from 0.1 to 3600 seconds")


class ExpertsConfig(_Part, frozen=True):
    """Moving the experts of models whose plan places them, as other experts become popular."""

    mode: Literal["off", "suggest", "apply"] = "apply"
    """suggest: say what would be better; apply: move them, beside the requests."""
    every: Seconds = Seconds(10)
    """Between two looks at which experts were chosen."""
    tokens: Tokens = 2048
    """The least that must have been seen since the last look that counted; fewer tell nothing."""
    hold: Seconds = Seconds(300)
    """How long a placement is expected to serve: over this time it must gain more than its moves cost."""

    def __post_init__(self) -> None:
        _check(self.every >= 0.1, "every", self.every, "0.1 seconds or more")
        _check(0 < self.hold <= 1e9, "hold", self.hold, "above 0 seconds")


class ListenAddress(NamedTuple):
    host: str
    port: int


class DeskConfig(_Part, frozen=True):
    """Where front ends on other hosts (`penstock front`) reach the process that routes, over TCP."""

    listen: str
    """HOST:PORT of the machine that routes, in a network that nobody else is in."""
    secret: Annotated[str, Meta(min_length=1)]
    """A file with what both know, 16 characters or more; who does not know it is turned away."""

    def __post_init__(self) -> None:
        _ = self.address

    @property
    def address(self) -> ListenAddress:
        return parse_listen(self.listen)


class ServeConfig(_Part, frozen=True):
    """The whole file. Read by `read_serve_config`, all its paths are absolute."""

    cluster: Cluster
    """The nodes and their devices."""
    models: Annotated[tuple[ModelEntry, ...], Meta(min_length=1, max_length=MAX_MODELS)]
    profiles: str | None = None
    """profiles.json; measured, and kept for the next time, when absent."""
    workload: str | dict[str, Any] | None = None
    """Traffic to plan for, as in a problem; what the models' `traffic` says when absent."""
    overhead: Seconds = Seconds(0.003)
    """Seconds a request spends outside the stages: HTTP, router, links. Unless 0, batches are handed over ahead."""
    objective: Objective = "target"
    """Judge plans by the models' shortfall below target first, or overall alone."""
    dispatch: Rule = "deadline"
    """By which rule one-pass requests are sent to groups; generating ones always go by their deadlines."""
    listen: str = "127.0.0.1:8000"
    """Where HTTP is answered."""
    fronts: Annotated[int, Meta(ge=0, le=256)] = 0
    """HTTP processes beside the one that routes; where there are none, that one answers itself."""
    desk: DeskConfig | None = None
    """Nobody is waited for when absent."""
    hosts: tuple[str, ...] = ()
    """Names that clients reach it by, beside the address itself; `*` takes any."""
    api_keys: str | None = None
    """File with one key a line, and a tenant's name after it; without it anybody may ask."""
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
    workers: WorkersConfig = msgspec.field(default_factory=WorkersConfig)
    replan: ReplanConfig = msgspec.field(default_factory=ReplanConfig)
    experts: ExpertsConfig = msgspec.field(default_factory=ExpertsConfig)
    training: TrainingConfig | None = None
    """No training when absent."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"models: two are named {twice!r}; names must differ")
        _ = self.address

    @property
    def address(self) -> ListenAddress:
        return parse_listen(self.listen)


def parse_listen(listen: str) -> ListenAddress:
    """A ValueError says what is wrong with it."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or (":" in host and not listen.startswith("[")):
        raise ValueError(f"listen {listen!r}: give host:port or [ipv6]:port")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError(f"listen {listen!r}: port {port!r} is not a number from 0 to 65535")
    return ListenAddress(host, int(port))


def read_serve_config(path: Path) -> ServeConfig:
    """Read it; relative paths are taken from where the file is. An InputError says in one line what is wrong where."""
    config = read_document(path, ServeConfig)
    base = path.resolve().parent
    changes: dict[str, Any] = {"models": tuple(_resolved_model(model, base) for model in config.models)}
    for name in ("profiles", "api_keys", "workload"):
        value = getattr(config, name)
        if isinstance(value, str):
            changes[name] = str(base / value)
    if config.desk is not None:
        changes["desk"] = msgspec.structs.replace(config.desk, secret=str(base / config.desk.secret))
    if config.training is not None:
        store = _resolved_store(config.training.store, base, path)
        folder = None if config.training.folder is None else str(base / config.training.folder)
        data = tuple(str(base / path) for path in config.training.data)
        changes["training"] = msgspec.structs.replace(config.training, store=store, folder=folder, data=data)
    return msgspec.structs.replace(config, **changes)


def _resolved_model(model: ModelEntry, base: Path) -> ModelEntry:
    engine = model.foreign
    if engine is not None and engine.key:
        engine = msgspec.structs.replace(engine, key=str(base / engine.key))
    return msgspec.structs.replace(model, path=str(base / model.path), engine=engine)


def _resolved_store(store: str, base: Path, path: Path) -> str:
    if store.startswith(SQLITE):
        return SQLITE + str(base / store.removeprefix(SQLITE))
    if not store.startswith("postgresql://"):
        raise InputError(f"{path}: training.store is {store!r}; expected sqlite:///FILE or postgresql://...")
    return store


def _check(holds: bool, field: str, value: float, right: str) -> None:
    if not holds or not math.isfinite(value):
        raise ValueError(f"{field} is {value:g}; it must be {right}")
