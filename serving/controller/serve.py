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
from serving.controller.glance import Glance
from serving.controller.lender import Lender
from serving.controller.loan_views import loan_figures
from serving.controller.planning import find_plan, make_problem, read_profiles
from serving.controller.replan import Replanner
from serving.controller.runner import Setup
from serving.controller.served import ModelFiles, read_models
from serving.controller.swaps import Swaps, recall
from serving.controller.training import jobs_folder, open_training
from serving.dashboard import Dashboard
from serving.http import HttpServer, HttpSettings, Service, check_address, get_log, make_app
from serving.profiler.cache import Cache, default_folder
from serving.profiler.effort import FULL, Effort
from serving.profiler.profile import profile_models
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import emulate_directory
from serving.worker.group import GroupLost
from serving.worker.launcher import Launcher
from serving.worker.local_launcher import LocalLauncher

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
    on_progress: OnProgress = lambda what, share, note: None,
    on_ready: Callable[[Running], None] = lambda running: None,
) -> None:
    """Serve until SIGTERM or SIGINT; a second signal does not wait for open requests."""
    with _signals() as stop:
        is_ready = False

        async def run() -> None:
            nonlocal is_ready
            async with running_server(config, plan=plan, effort=effort, on_progress=on_progress) as running:
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
    on_progress: OnProgress = lambda what, share, note: None,
) -> AsyncIterator[Running]:
    """A server whose groups are there (or have failed to be); it drains and ends when the block is left."""
    # What is wrong with these is said before minutes of measuring and planning.
    host, port = config.address
    keys, admin_key = keys_with_admin(config.api_keys, os.environ, host)
    check_address(host, port)
    files = read_models(config)
    jobs = None if config.training is None else jobs_folder(config.training)
    recalled = recall(files, jobs)
    devices = worker_devices(config.cluster, config.workers)
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
    router: Router[Any] = Router(problem, (GroupLost,), settings)
    experts = {name: one.experts for name, one in files.items()}
    setup = Setup(
        launcher=_launcher(config, problem, files),
        devices=devices,
        spec_of=lambda group, model: files[model].spec(group, problem, config.dispatch),
        probes={name: one.probe for name, one in files.items()},
        check=partial(check_experts, problem=problem, models=experts),
        pace=config.workers.pace if config.workers.kind == "paced" else 1.0,
    )
    controller = Controller(problem, router, setup)
    replanner, keeper = Replanner(controller, config.replan), ExpertKeeper(controller, experts, config.experts)
    paths = [entry.path for entry in config.models]
    for model, what, reason in recalled:
        controller.journal.note("model", model, what, reason=reason)
    swaps = Swaps(controller, files, {entry.name: entry.path for entry in config.models}, jobs)
    training = open_training(config.training, problem.cluster, controller.ledger, devices, paths, swaps.begin)
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
        unready=controller.unready,
        admin=AdminDesk(controller, replanner, keeper, lender),
        jobs=None if training is None else training.desk,
        pages=dashboard.routes,
        listen=host,
    )
    http = HttpServer(make_app(service), host, port, service.settings)
    controller.ledger.on_move = dashboard.recorder.note_holders
    beside: list[asyncio.Task[None]] = [asyncio.create_task(dashboard.viewers.run(), name="dashboard")]
    try:
        await http.start()
        with keep_key(http.port, admin_key):
            if training is not None:
                await training.start([device for group in first.groups for device in group.devices])
            await controller.start(first, why)
            on_progress("starting", 1.0, "")
            beside.append(asyncio.create_task(replanner.run(), name="replanner"))
            beside.append(asyncio.create_task(keeper.run(), name="experts"))
            if lender is not None:
                beside.append(asyncio.create_task(lender.run(), name="loans"))
            shown = f"[{host}]" if ":" in host else host
            yield Running(f"http://{shown}:{http.port}", controller, http)
    finally:
        for task in (*beside, *swaps.tasks):
            task.cancel()
        await asyncio.gather(*beside, *swaps.tasks, return_exceptions=True)
        dashboard.viewers.close()
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
