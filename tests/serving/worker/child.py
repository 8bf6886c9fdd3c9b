"""A worker of the launcher's tests: does what its document says, a word at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from serving.worker.device import pin
from serving.worker.lifeline import read_document


def say(words: object) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def main() -> None:
    document = read_document()
    for verb, value in document["do"]:
        if verb == "say":
            say(value)
        elif verb == "print":
            sys.stdout.write(f"{value}\n")
        elif verb == "count":
            for number in range(value):
                say(number)
        elif verb == "tell":
            facts = {
                "environment": dict(os.environ),
                "arguments": sys.argv,
                "name": __name__,
                "size": len(str(document)),
            }
            facts["rest"] = sys.stdin.buffer.read().decode()
            say(json.dumps(facts | {"session": os.getsid(0), "path": sys.path}))
        elif verb == "pin":
            say([pin(device) for device in value])
        elif verb == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif verb == "bear":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            say(f"bore {child.pid}")
        elif verb == "sleep":
            time.sleep(value)
        elif verb == "exit":
            sys.exit(value)
        elif verb == "fall":
            os.kill(os.getpid(), value)
    os._exit(0)  # whatever it bore is left behind


if __name__ == "__main__":
    main()
