"""Ray Serve with a model that does nothing: one HTTP proxy, one replica.

Runs in an environment of its own and imports nothing of ours. python noop_ray.py PORT CORE
"""

import os
import signal
import sys
from typing import Any

os.sched_setaffinity(0, {int(sys.argv[2])})

import ray  # noqa: E402
from ray import serve  # noqa: E402
from starlette.requests import Request  # noqa: E402


class Noop:
    async def __call__(self, request: Request) -> dict[str, Any]:
        asked = await request.json()
        [int(one) for one in asked["input"]]
        return {"embedding": [0.0] * 16}


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False})
deployed = serve.deployment(num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.1})(Noop)
serve.run(deployed.bind(), route_prefix="/v1/embeddings")
signal.sigwait([signal.SIGTERM, signal.SIGINT])
serve.shutdown()
ray.shutdown()
