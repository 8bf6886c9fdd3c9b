"""BentoML with a model that does nothing, as its guide has it: one worker.

Runs in an environment of its own and imports nothing of ours. python noop_bentoml.py PORT CORE
"""

import logging
import os
import sys

import bentoml

if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    folder = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-m", "bentoml", "serve", "noop_bentoml:Noop", "--port", sys.argv[1], "-q"]
    os.chdir(folder)
    os.execv(sys.executable, command)


logging.getLogger("bentoml").setLevel(logging.ERROR)


@bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Noop:
    @bentoml.api(route="/v1/embeddings")  # type: ignore[untyped-decorator]
    def embed(self, model: str, input: list[int]) -> dict[str, list[float]]:
        return {"embedding": [0.0] * 16}
