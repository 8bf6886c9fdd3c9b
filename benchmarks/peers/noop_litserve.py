"""LitServe with a model that does nothing, as its guide has it: one worker process.

Runs in an environment of its own and imports nothing of ours. python noop_litserve.py PORT CORE
"""

import os
import sys
from typing import Any

import litserve

os.sched_setaffinity(0, {int(sys.argv[2])})


class Noop(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        pass

    def decode_request(self, request: dict[str, Any]) -> list[int]:
        return [int(one) for one in request["input"]]

    def predict(self, x: list[int]) -> list[float]:
        return [0.0] * 16

    def encode_response(self, output: list[float]) -> dict[str, Any]:
        return {"embedding": output}


if __name__ == "__main__":
    server = litserve.LitServer(Noop(api_path="/v1/embeddings"), accelerator="cpu", devices=1, workers_per_device=1)
    server.run(port=int(sys.argv[1]), log_level="error", access_log=False, generate_client_file=False)
