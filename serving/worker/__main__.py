"""One worker process: `python -m serving.worker`, with its document on stdin."""

from __future__ import annotations

import os
import sys

from placement.errors import InputError
from serving.worker.device import pin
from serving.worker.document import parse_document
from serving.worker.lifeline import read_document


def main() -> int:
    try:
        document = parse_document(read_document())
        pin(document.device)
    except InputError as error:
        sys.stderr.write(f"worker: {error}\n")
        return 2
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    from serving.worker.leader import run_leader
    from serving.worker.member import run_member

    (run_leader if document.rank == 0 else run_member)(document)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # tearing torch down takes a second, and there is nothing to tear down
