"""A worker process whose model does nothing: speaks as the leader of a group does and answers every input with zeros
at once.

LocalLauncher starts it in the place of `serving.worker`; what is left of a request's way is all overhead.
"""

from __future__ import annotations

import asyncio
import os

from serving.engine.outputs import Answered
from serving.worker.device import pin
from serving.worker.document import WorkerDocument, parse_document
from serving.worker.event_loop import run
from serving.worker.lifeline import read_document
from serving.worker.link import Link
from serving.worker.listener import listen
from serving.worker.messages import Done, Hello, Infer, Load, Order, Outputs, Report, Stop
from serving.worker.settings import LinkSettings

WIDTH = 16
ZEROS = bytes(4 * WIDTH)


async def main(document: WorkerDocument) -> None:
    over = asyncio.Event()

    def greet(link: Link[Report, Order]) -> None:
        link.send(Hello(document.group, document.tp, document.pp, [os.getpid()]))

    def obey(link: Link[Report, Order], order: Order) -> None:
        match order:
            case Infer(request, model, inputs):
                link.send(Outputs(model, [Answered(request, len(inputs), ZEROS * len(inputs))]))
            case Load(id):
                link.send(Done(id))
            case Stop():
                over.set()

    settings = LinkSettings(life_s=document.life_s, ping_s=document.life_s / 4)
    await listen(document.control, Order, greet, obey, lambda link, reason: over.set(), settings=settings)
    await over.wait()


if __name__ == "__main__":
    given = parse_document(read_document())
    pin(given.device)
    run(main(given))
