"""The whole server: profiles, plan, workers, router, HTTP, put together from a configuration and run until a signal."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

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
from serving.controller.foreign import check_foreign
from serving.controller.front_keeper import FrontKeeper, hold_port
from serving.controller.glance import Glance
from serving.controller.lender import Lender
from serving.controller.loan_views import loan_figures
from serving.controller.machines import LOCAL, Machines, join_ray
from serving.controller.nodes import NodeKeeper
from serving.controller.planning import find_plan, make_problem, read_profiles
from serving.controller.replan import Replanner
from serving.controller.runner import Setup
from serving.controller.served import ModelFiles, read_models
from serving.controller.swaps import Swaps, recall
from serving.controller.training import jobs_folder, open_training
from serving.dashboard import Dashboard
from serving.fronts.desk import Desk
from serving.http import HttpServer, HttpSettings, Service, check_address, get_log, make_app
from serving.machines.fetch import fetch_all
from serving.profiler.cache import Cache, default_folder
from serving.profiler.effort import FULL, Effort
from serving.profiler.profile import profile_models
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import emulate_directory
from serving.worker.group import GroupLost
from serving.worker.launcher import Launcher
from serving.worker.local_launcher import LocalLauncher
from serving.worker.room import local_room

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
    http: HttpServer


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
    """A server whose groups are there (or have failed to be); it drains and ends when the block is left."""
    # What is wrong with these is said before minutes of measuring and planning.
    host, port = config.address
    keys, admin_key = keys_with_admin(config.api_keys, os.environ, host)
    hold_port(host, port).close() if config.fronts else check_address(host, port)
    fronts: FrontKeeper | None = None
    sources = {entry.path: entry.source for entry in config.models if entry.source is not None}
    await asyncio.to_thread(fetch_all, sources)
    files = read_models(config)
    jobs = None if config.training is None else jobs_folder(config.training)
    recalled = recall(files, jobs)
    ray = None
    if machines.launcher == "ray":
        ray = await join_ray(machines, config, sources)
        wanted, config = config, msgspec.structs.replace(config, cluster=await ray.look())
    devices = worker_devices(config.cluster, config.workers) if ray is None else ray.devices
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
    settings = RouterSettings(queue_requests=config.limits.queue, dispatch=config.dispatch)
    kinds = None if ray is None else dict.fromkeys(node.kind for node in wanted.cluster.nodes)
    router: Router[Any] = Router(problem, (GroupLost,), settings, kinds=kinds)
    experts = {name: one.experts for name, one in files.items()}
    foreign = frozenset(
        entry.name for entry in config.models if entry.foreign is not None and config.workers.kind != "emulated"
    )

    def check(plan: Plan) -> None:
        check_experts(plan, controller.problem, experts)
        check_foreign(plan, foreign)

    setup = Setup(
        launcher=ray or _launcher(config, problem, files),
        open_room=local_room if ray is None else ray.open_room,
        devices=devices,
        spec_of=lambda group, model: files[model].spec(group, controller.problem, config.dispatch),
        probes={name: one.probe for name, one in files.items()},
        check=check,
        foreign=foreign,
        pace=config.workers.pace if config.workers.kind == "paced" else 1.0,
    )
    controller = Controller(problem, router, setup)
    replanner, keeper = Replanner(controller, config.replan), ExpertKeeper(controller, experts, config.experts)
    paths = [entry.path for entry in config.models]
    for model, what, reason in recalled:
        controller.journal.note("model", model, what, reason=reason)
    swaps = Swaps(controller, files, {entry.name: entry.path for entry in config.models}, jobs)
    places, address = (devices, None) if ray is None else (ray.spots, ray.joined.address)
    training = open_training(config.training, problem.cluster, controller.ledger, places, paths, swaps.begin, address)
    lender = None if training is None else Lender(controller, training, training.loans)
    dashboard = Dashboard(Glance(controller, replanner, keeper, lender, training), router.statistics)
    service = Service(
        router=router,
        models={name: one.served(partial(controller.state_of, name)) for name, one in files.items()},
        settings=HttpSettings(
            body_bytes=int(config.limits.body),
            prompt_tokens=config.limits.prompt_tokens,
            drain_s=DRAIN_S,
            hosts=config.hosts,
        ),
        keys=keys,
        figures=lambda: chain(views.figures(controller), expert_figures(keeper), loan_figures(lender)),
        add_counts=lambda meters: None if fronts is None else fronts.add_counts(meters),
        unready=controller.unready,
        admin=AdminDesk(controller, replanner, keeper, lender),
        jobs=None if training is None else training.desk,
        pages=dashboard.routes,
        listen=host,
    )
    app = make_app(service)
    if config.fronts:
        fronts = FrontKeeper(config, Desk(router, app.meters), controller.journal, admin_key)
    http = HttpServer(app, *(("127.0.0.1", 0) if fronts else (host, port)), service.settings)
    controller.ledger.on_move = dashboard.recorder.note_holders
    beside: list[asyncio.Task[None]] = [asyncio.create_task(dashboard.viewers.run(), name="dashboard")]
    try:
        await http.start()
        with keep_key(http.port if fronts is None else fronts.port, admin_key):
            if training is not None:
                await training.start([device for group in first.groups for device in group.devices])
            await controller.start(first, why)
            if fronts is not None:
                await fronts.start(http.port)
            on_progress("starting", 1.0, "")
            beside.append(asyncio.create_task(replanner.run(), name="replanner"))
            beside.append(asyncio.create_task(keeper.run(), name="experts"))
            if lender is not None:
                beside.append(asyncio.create_task(lender.run(), name="loans"))
            if ray is not None:
                nodes = NodeKeeper(controller, replanner, ray.look, None if training is None else training.move)
                beside.append(asyncio.create_task(nodes.run(), name="nodes"))
            shown = f"[{host}]" if ":" in host else host
            yield Running(f"http://{shown}:{http.port if fronts is None else fronts.port}", controller, http)
    finally:
        for task in (*beside, *swaps.tasks):
            task.cancel()
        await asyncio.gather(*beside, *swaps.tasks, return_exceptions=True)
        dashboard.viewers.close()
        if fronts is not None:
            await fronts.stop(DRAIN_S)
        await asyncio.gather(http.stop(), *([] if training is None else [training.stop()]))
        await controller.stop(DRAIN_S)


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
