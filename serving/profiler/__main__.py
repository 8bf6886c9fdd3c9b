"""One measuring process: `python -m serving.profiler`, with its document on stdin. Pinned and single-threaded like a
worker.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from placement.errors import InputError
from placement.files import convert
from serving.profiler.messages import (
    PATIENT,
    Failed,
    Leave,
    MeasureOrder,
    MeasurerDocument,
    MeasureReport,
    Ready,
)
from serving.worker.connect import connect
from serving.worker.device import pin
from serving.worker.lifeline import read_document
from serving.worker.link import Link
from serving.worker.mail import Mail

if TYPE_CHECKING:
    from serving.profiler.measurer import Measurer

CONNECT_S = 60.0


def main() -> int:
    try:
        document = convert(read_document(), MeasurerDocument, "measurer document")
        pin(document.device)
    except InputError as error:
        sys.stderr.write(f"measurer: {error}\n")
        return 2
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    from serving.profiler.measurer import Measurer

    mail = Mail()
    measurer = Measurer(document, mail)
    link: Link[MeasureReport, MeasureOrder] = mail.call(
        connect(
            document.control,
            MeasureOrder,
            lambda _, order: mail.inbox.put(order),
            lambda _, reason: mail.lost(f"the profiler is gone: {reason}"),
            deadline_s=CONNECT_S,
            settings=PATIENT,
        )
    )
    link.post(Ready(document.number))
    while not isinstance(order := mail.inbox.get(), Leave):
        link.post(_try(measurer, order))
    mail.end()
    measurer.close()
    return 0


def _try(measurer: Measurer, order: MeasureOrder) -> MeasureReport:
    try:
        return measurer.carry_out(order)
    except InputError as error:
        return Failed(str(error), is_input=True)
    except Exception as error:  # the process boundary: the profiler must hear of it
        return Failed(f"{type(error).__name__}: {error}", is_input=False)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # tearing torch down takes a second, and there is nothing to tear down
