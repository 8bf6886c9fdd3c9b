"""python -P -m serving.engines.tied COMMAND...: becomes the command, and is told to end when its parent does.

By SIGTERM, not SIGKILL as our own workers: a server of others has processes of its own to end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the tie was made
        sys.exit(1)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[1]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
