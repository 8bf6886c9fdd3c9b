"""Open-loop traffic with rate and cv, driven by Locust: `locust -f loadgen/locustfile.py --host URL --rate 20 --cv 3`.

Headless, with Locust's web page, or as master and workers. Requests do not come from Locust's users: a sender in each
process sends its share of one process of arrivals, each when it is due. The users shown are the senders.
"""

from __future__ import annotations

from typing import Any

import locust
from locust import LoadTestShape, User, constant, task
from locust.runners import MasterRunner, WorkerRunner

from loadgen.swarm.arguments import add_arguments
from loadgen.swarm.conductor import Conductor
from loadgen.swarm.messages import SHARE
from loadgen.swarm.prepared import prepare
from loadgen.swarm.web_page import extend_page
from loadgen.swarm.worker import Worker

events: Any = locust.events
events.init_command_line_parser.add_listener(add_arguments)


class Sender(User):
    """Stands for the sender of a process in Locust's counts."""

    wait_time = constant(1)

    @task
    def send(self) -> None:
        """The conductor's sender does."""


class Sweep(LoadTestShape):
    """One user a sender, until every request of every stage has come to an end."""

    conductor: Conductor | None = None

    @property
    def is_running(self) -> bool:
        return self.runner is not None and self.runner.user_count > 0

    def tick(self) -> tuple[int, float] | None:
        assert self.conductor is not None
        if self.conductor.is_over and self.is_running:
            return None
        return self.conductor.senders, float(self.conductor.senders)


def on_init(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        _work(environment)
    else:
        _conduct(environment)


def _work(environment: Any) -> None:
    worker = Worker(environment)
    environment.runner.register_message(SHARE, lambda environment, msg, **_: worker.take_share(msg.data))
    events.report_to_master.add_listener(lambda client_id, data: worker.report(data))
    events.test_stop.add_listener(lambda environment, **_: worker.stop())


def _conduct(environment: Any) -> None:
    conductor = Conductor(environment)
    if environment.web_ui is None:
        conductor.check()
    else:
        extend_page(environment, prepare, conductor.span_s)
    if isinstance(environment.runner, MasterRunner):
        events.worker_report.add_listener(lambda client_id, data: conductor.take_report(client_id, data))
    events.test_start.add_listener(lambda environment, **_: conductor.start())
    events.test_stop.add_listener(lambda environment, **_: conductor.stop())
    environment.shape_class.conductor = conductor


events.init.add_listener(on_init)
