"""The worker's side of being started: it dies with its parent, and reads its document from stdin.

    python -P -m serving.worker.lifeline MODULE

ties this process to its parent and then runs MODULE as `python -m` would, so that no module can forget to.
Imports little: nothing heavy may come before the tie.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

PARENT_VARIABLE = "PENSTOCK_PARENT_PID"
MAX_DOCUMENT_BYTES = 64 * 2**20
POLL_S = 0.25

_PR_SET_PDEATHSIG = 1


def hold() -> None:
    """Die (SIGKILL) when the parent does, in whatever way; at once if it already has.

    The kernel watches the parent's thread that started this process; LocalLauncher keeps it as long as the worker.
    """
    parent = int(os.environ.pop(PARENT_VARIABLE, None) or os.getppid())
    if sys.platform == "linux":
        _ask_kernel()
    else:
        threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()
    if os.getppid() != parent:  # it died before the tie was made
        os.kill(os.getpid(), signal.SIGKILL)


def read_document() -> dict[str, Any]:
    """The one JSON document on stdin, which is empty from then on.

    Secrets come this way: command lines and environments can be read by others.
    """
    import msgspec

    from placement.errors import InputError

    raw = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
    _empty_stdin()
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise InputError(f"stdin: a document of over {MAX_DOCUMENT_BYTES} bytes; is this the right one?")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"stdin: no JSON document of a worker: {error}") from error


def _empty_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _ask_kernel() -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not tie this process to its parent")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    hold()
    import runpy

    module = sys.argv[1]
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
