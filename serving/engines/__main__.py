"""The leader of a group of others' engines: `python -m serving.engines`, with its document on stdin."""

from __future__ import annotations

import os
import sys

from placement.errors import InputError
from serving.worker.device import pin_all
from serving.worker.document import parse_document
from serving.worker.event_loop import run
from serving.worker.lifeline import read_document


def main() -> int:
    try:
        document = parse_document(read_document())
        pin_all(document.devices)
    except InputError as error:
        sys.stderr.write(f"worker: {error}\n")
        return 2
    from serving.engines.leader import ForeignLeader

    async def lead() -> int:
        return await ForeignLeader(document).run()

    return run(lead())


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
