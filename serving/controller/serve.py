"""The whole server: profiles, plan, workers, router, HTTP, put together from a configuration and run until a signal."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from placement.plan import Plan
from placement.problem import Problem
from placement.profile import Profile
from router import Router, RouterSettings
from router.warm_up import warm_up
from serving.config import ServeConfig
from serving.controller import views
from serving.controller.admin import AdminDesk
from serving.controller.admin_key import keep_key, keys_with_admin
from serving.controller.controller import Controller
from serving.controller.devices import worker_devices
from serving.controller.expert_files import check_experts
from serving.controller.expert_views import expert_figures
from serving.controller.experts import ExpertKeeper
from serving.controller.experts import warm_up as warm_up_experts
from serving.controller.foreign import check_foreign, measured_wake_s
from serving.controller.front_keeper import FrontKeeper, hold_port
from serving.controller.front_process import read_secret
from serving.controller.glance import Glance
from serving.controller.lender import Lender
from serving.controller.loan_views import loan_figures
from serving.controller.machines import LOCAL, Machines, join_ray
from serving.controller.nodes import NodeKeeper
from serving.controller.planning import find_plan, make_problem, read_profiles
from serving.controller.replan import Replanner
from serving.controller.runner import Setup
from serving.controller.served import ModelFiles, check_graphs, read_models
from serving.controller.swaps import Recalled, Swaps, recall
from serving.controller.training import TrainingQueue, jobs_folder, open_training
from serving.dashboard import Dashboard
from serving.fronts.counts import add_counts
from serving.fronts.desk import Desk
from serving.http import Door, HttpServer, HttpSettings, Keys, Service, check_address, get_log, make_app
from serving.http.server import settle_memory
from serving.machines.fetch import fetch_all
from serving.profiler.cache import Cache, default_folder
from serving.profiler.effort import FULL, Effort
from serving.profiler.profile import profile_models
from serving.worker.address import TcpAddress
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import emulate_directory
from serving.worker.group import GroupLost
from serving.worker.launcher import Launcher
from serving.worker.local_launcher import LocalLauncher
from serving.worker.room import local_room

if TYPE_CHECKING:
    from serving.machines.ray_cluster import RayCluster

DRAIN_S = 30.0
"""What open requests get to finish when the server is told to stop."""

IMPATIENT_S = 1.0
"""Signals closer together are one wish."""

OnProgress = Callable[[str, float, str], None]
"""(what is being done, share done, note)"""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    controller: Controller
    port: int


async def serve(
    config: ServeConfig,
    *,
    plan: Path | None = None,
    effort: Effort = FULL,
    machines: Machines = LOCAL,
    on_progress: OnProgress = lambda what, share, note: None,
    on_ready: Callable[[Running], None] = lambda running: None,
) -> None:
    """Serve until SIGTERM or SIGINT; a second signal does not wait for open requests."""
    with _signals() as stop:
        is_ready = False

        async def run() -> None:
            nonlocal is_ready
            options: dict[str, Any] = {"plan": plan, "effort": effort, "machines": machines}
            async with running_server(config, **options, on_progress=on_progress) as running:
                is_ready = True
                on_ready(running)
                await stop.wait()

        work, asked = asyncio.create_task(run()), asyncio.create_task(stop.wait())
        await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not is_ready:
            work.cancel()
        with suppress(asyncio.CancelledError):
            await work


@asynccontextmanager
async def running_server(
    config: ServeConfig,
    *,
    plan: Path | None = None,
    effort: Effort = FULL,
    machines: Machines = LOCAL,
    on_progress: OnProgress = lambda what, share, note: None,
) -> AsyncIterator[Running]:
    """A server whose groups are there (or have failed to be); it drains and ends when the block is left. What starts
    stands here in its order; `_Parts.stop` has the order of the end."""
    found = await _prepare(config, plan, effort, machines, on_progress)
    parts = _put_together(found)
    async with AsyncExitStack() as ends:
        ends.push_async_callback(parts.stop)
        parts.run_beside(parts.dashboard.viewers.run(), "dashboard")
        if parts.http is not None:
            await parts.http.start()  # it says that nothing is ready yet
        ends.enter_context(keep_key(parts.port, found.admin_key))
        if parts.training is not None:
            await parts.training.start([device for group in found.plan.groups for device in group.devices])
        await parts.controller.start(found.plan, found.why)
        if parts.training is not None:
            parts.training.serve_trained()
        if parts.fronts is not None:
            await parts.fronts.start()
        if found.config.desk is not None:
            where = await parts.desk.open(str(TcpAddress(*found.config.desk.address)), found.secret)
            parts.controller.journal.note("fronts", where, "awaited")
        on_progress("starting", 1.0, "")
        parts.run_beside(parts.replanner.run(), "replanner")
        parts.run_beside(parts.experts.run(), "experts")
        if parts.lender is not None:
            parts.run_beside(parts.lender.run(), "loans")
        if parts.nodes is not None:
            parts.run_beside(parts.nodes.run(), "nodes")
        shown = f"[{found.host}]" if ":" in found.host else found.host
        yield Running(f"http://{shown}:{parts.port}", parts.controller, parts.port)


@dataclass(frozen=True)
class _Found:
    """What is known before anything runs."""

    config: ServeConfig
    """With the cluster's devices as they are."""
    host: str
    port: int
    keys: Keys
    admin_key: str | None
    secret: bytes | None
    """Of front ends on other hosts."""
    files: dict[str, ModelFiles]
    recalled: list[Recalled]
    ray: RayCluster | None
    kinds: Collection[str] | None
    """Of devices that a cluster may come to have."""
    devices: Mapping[str, str]
    """As workers call them; of a cluster, changed in place."""
    problem: Problem
    plan: Plan
    why: str


async def _prepare(
    config: ServeConfig, plan: Path | None, effort: Effort, machines: Machines, on_progress: OnProgress
) -> _Found:
    """Look, measure and plan; start nothing. What is wrong is said before the minutes that this can take."""
    host, port = config.address
    # Who comes through a front end of another host is not of this machine.
    keys, admin_key = keys_with_admin(config.api_keys, os.environ, "" if config.desk else host)
    secret = None if config.desk is None else read_secret(config.desk)
    hold_port(host, port).close() if config.fronts else check_address(host, port)
    sources = {entry.path: entry.source for entry in config.models if entry.source is not None}
    await asyncio.to_thread(fetch_all, sources)
    files = read_models(config)
    recalled = recall(files, None if config.training is None else jobs_folder(config.training))
    ray: RayCluster | None = None
    kinds: Collection[str] | None = None
    if machines.launcher == "ray":
        ray = await join_ray(machines, config, sources)
        kinds = dict.fromkeys(node.kind for node in config.cluster.nodes)
        config = msgspec.structs.replace(config, cluster=await ray.look())
    devices = worker_devices(config.cluster, config.workers) if ray is None else ray.devices
    if config.workers.kind != "emulated":
        check_graphs(files, devices)
    profiles = await _profiles(config, effort, on_progress)
    problem = make_problem(config, {name: one.config for name, one in files.items()}, profiles)
    on_progress("planning", 0.0, "")
    lends = config.training is not None and config.training.loans.mode != "off"
    first, why = await asyncio.to_thread(
        find_plan, problem, plan, config.dispatch, lambda share, note: on_progress("planning", share, note), lends
    )
    on_progress("starting", 0.0, f"{len(first.groups)} groups")
    await asyncio.to_thread(warm_up)
    if config.experts.mode != "off" and any(group.experts for group in first.groups):
        await asyncio.to_thread(warm_up_experts)
    return _Found(
        config=config,
        host=host,
        port=port,
        keys=keys,
        admin_key=admin_key,
        secret=secret,
        files=files,
        recalled=recalled,
        ray=ray,
        kinds=kinds,
        devices=devices,
        problem=problem,
        plan=first,
        why=why,
    )


@dataclass
class _Parts:
    """What a server is put together from; those that may be None are not asked for."""

    controller: Controller
    replanner: Replanner
    experts: ExpertKeeper
    swaps: Swaps
    training: TrainingQueue | None
    lender: Lender | None
    nodes: NodeKeeper | None
    dashboard: Dashboard
    app: Door
    desk: Desk
    http: HttpServer | None
    fronts: FrontKeeper | None
    """One of these two is there."""
    _beside: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where clients ask."""
        listens = self.http or self.fronts
        assert listens is not None
        return listens.port

    def run_beside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._beside.append(asyncio.create_task(work, name=name))

    async def stop(self) -> None:
        """First nobody decides any more, then no request comes in; groups go last, when open ones have ended."""
        tasks = (*self._beside, *self.swaps.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.dashboard.viewers.close()
        if self.fronts is not None:
            await self.fronts.stop(DRAIN_S)
        await self.desk.stop(DRAIN_S)
        ends = self.app.close() if self.http is None else self.http.stop()
        await asyncio.gather(ends, *([] if self.training is None else [self.training.stop()]))
        await self.controller.stop(DRAIN_S)


def _put_together(found: _Found) -> _Parts:
    """Each part knows those above it."""
    config, files, ray = found.config, found.files, found.ray
    controller = _controller(found)
    experts = ExpertKeeper(controller, {name: one.experts for name, one in files.items()}, config.experts)
    replanner = Replanner(controller, config.replan)
    jobs = None if config.training is None else jobs_folder(config.training)
    paths = {entry.name: entry.path for entry in config.models}
    swaps = Swaps(controller, files, paths, jobs)
    places, address = (found.devices, None) if ray is None else (ray.spots, ray.joined.address)
    training = open_training(
        config.training, found.problem.cluster, controller.ledger, places, list(paths.values()), swaps.begin, address
    )
    lender = None if training is None else Lender(controller, training, training.loans)
    move = None if training is None else training.move
    nodes = None if ray is None else NodeKeeper(controller, replanner, ray.look, move)
    dashboard = Dashboard(Glance(controller, replanner, experts, lender, training), controller.router.statistics)
    service = Service(
        router=controller.router,
        models={name: one.served(partial(controller.state_of, name)) for name, one in files.items()},
        settings=HttpSettings(
            body_bytes=int(config.limits.body),
            prompt_tokens=config.limits.prompt_tokens,
            drain_s=DRAIN_S,
            hosts=config.hosts,
        ),
        keys=found.keys,
        figures=lambda: chain(views.figures(controller), expert_figures(experts), loan_figures(lender)),
        add_counts=lambda meters: add_counts(meters, desk.counts()),
        unready=controller.unready,
        admin=AdminDesk(controller, replanner, experts, lender),
        jobs=None if training is None else training.desk,
        pages=dashboard.routes,
        listen=found.host,
    )
    app = make_app(service)
    controller.ledger.on_move = dashboard.recorder.note_holders  # there since its routes are
    desk = Desk(controller.router, app.meters, app, version("penstock"))
    http: HttpServer | None = None
    fronts: FrontKeeper | None = None
    if config.fronts:
        fronts = FrontKeeper(config, desk, controller.journal, found.admin_key)
        settle_memory()
    else:
        http = HttpServer(app, found.host, found.port, service.settings)
    return _Parts(
        controller=controller,
        replanner=replanner,
        experts=experts,
        swaps=swaps,
        training=training,
        lender=lender,
        nodes=nodes,
        dashboard=dashboard,
        app=app,
        desk=desk,
        http=http,
        fronts=fronts,
    )


def _controller(found: _Found) -> Controller:
    config, files, ray = found.config, found.files, found.ray
    settings = RouterSettings(queue_requests=config.limits.queue, dispatch=config.dispatch)
    router: Router[Any] = Router(found.problem, (GroupLost,), settings, kinds=found.kinds)
    experts = {name: one.experts for name, one in files.items()}
    foreign = frozenset(
        entry.name for entry in config.models if entry.foreign is not None and config.workers.kind != "emulated"
    )

    def check(plan: Plan) -> None:
        check_experts(plan, controller.problem, experts)
        check_foreign(plan, foreign)

    setup = Setup(
        launcher=ray or _launcher(config, found.problem, files),
        open_room=local_room if ray is None else ray.open_room,
        devices=found.devices,
        spec_of=lambda group, model: files[model].spec(group, controller.problem, config.dispatch),
        probes={name: one.probe for name, one in files.items()},
        wake_s=lambda group, model: measured_wake_s(group, model, controller.problem),
        check=check,
        foreign=foreign,
        pace=config.workers.pace if config.workers.kind == "paced" else 1.0,
    )
    controller = Controller(found.problem, router, setup)
    for model, what, reason in found.recalled:
        controller.journal.note("model", model, what, reason=reason)
    return controller


async def _profiles(config: ServeConfig, effort: Effort, on_progress: OnProgress) -> dict[str, Profile]:
    if config.profiles is not None:
        return read_profiles(Path(config.profiles))
    on_progress("measuring models", 0.0, "")
    found = await profile_models(
        config,
        effort=effort,
        cache=Cache(default_folder()),
        on_progress=lambda share, note: on_progress("measuring models", share, note),
    )
    return found.profiles


def _launcher(config: ServeConfig, problem: Problem, files: dict[str, ModelFiles]) -> Launcher:
    if config.workers.kind != "emulated":
        log = get_log("worker")
        return LocalLauncher(on_line=lambda name, line: log.info(line, worker=name))
    profiles = {model.name: model.profile for model in problem.models}
    kinds = {node.kind for node in config.cluster.nodes}
    return EmulatedLauncher(
        {one.entry.path: emulate_directory(Path(one.entry.path), profiles[name]) for name, one in files.items()},
        kind=kinds.pop() if len(kinds) == 1 else None,
    )


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT; one that comes a while later ends the process at once, workers with it."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    first = math.inf

    def told() -> None:
        nonlocal first
        if loop.time() > first + IMPATIENT_S:
            os._exit(1)
        first = min(first, loop.time())
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
