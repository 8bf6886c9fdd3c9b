"""Viewers of a dashboard without a browser: as many streams, read to their end, in a process of its own.

python -m benchmarks.harness.viewers PORT COUNT KEY
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from placement.cli.admin import key_file


def main() -> None:
    port, count, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    threads = [threading.Thread(target=_read, args=(port, key), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()  # until whoever started it closes it


@contextmanager
def viewing(port: int, count: int) -> Iterator[None]:
    """While so many look at the server on a port of this machine; returns when each has seen something."""
    path = key_file(port)
    key = path.read_text() if path.is_file() else ""
    command = [sys.executable, "-m", "benchmarks.harness.viewers", str(port), str(count), key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(count):
            if process.stdout.readline() != b"sees\n":
                raise RuntimeError("a viewer saw nothing")
        yield
        process.stdin.close()


def _read(port: int, key: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/dashboard/stream", headers={"authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    if answer.status == 200 and answer.readline():
        sys.stdout.write("sees\n")
        sys.stdout.flush()
    while answer.readline():
        pass


if __name__ == "__main__":
    main()
