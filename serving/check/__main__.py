"""One errand's process: `python -m serving.check`, with its document on stdin. Answers with a line of JSON, or with one
after the other as they come.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from serving.worker.device import pin
from serving.worker.lifeline import read_document


def main() -> int:
    document = read_document()
    device = str(document["device"])
    pin(device)
    import torch

    if device.startswith("cpu"):
        torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    say(_tasks()[document["task"]](device, **document["options"]))
    return 0


def say(answer: object) -> None:
    from serving.check.errand import MARK

    for one in answer if isinstance(answer, Iterator) else (answer,):
        sys.stdout.write(MARK + msgspec.json.encode(one).decode() + "\n")
        sys.stdout.flush()


def _tasks() -> dict[str, Callable[..., Any]]:
    from serving.check.cpu_kernels import check_cpu_kernels
    from serving.check.kernels import check_kernels
    from serving.check.links import time_links
    from serving.check.tune import tune

    return {"cpu_kernels": check_cpu_kernels, "kernels": check_kernels, "links": time_links, "tune": tune}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
