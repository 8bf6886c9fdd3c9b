"""How devices exchange tensors here: sums over all of them, each way that serving has, latency and bandwidth."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from serving.check.errand import Errand, send
from serving.check.results import Finding, judged, skipped, telling
from serving.worker.scratch import Scratch

SMALL_BYTES, LARGE_BYTES = 4 * 2**10, 16 * 2**20
TIMES = 30


async def check_links(devices: list[str]) -> list[Finding]:
    """Shared memory and gloo between cores, NCCL between GPUs."""
    if len(devices) < 2:
        return [skipped("links", "between devices", "there is only one")]
    backends = ("shared", "gloo") if devices[0].startswith("cpu") else ("nccl",)
    found = list[Finding]()
    for backend in backends:
        what = f"{backend}, {len(devices)} devices"
        with telling("links", what, found):
            found.append(_judge(what, await _times(devices, backend)))
    return found


def _judge(what: str, times: dict[str, Any]) -> Finding:
    small, large = times["small_s"], times["large_s"]
    return judged(
        "links",
        what,
        bool(times["is_right"]),
        all_reduce_4KiB_us=round(small * 1e6, 1),
        all_reduce_16MiB_GB_per_s=round(LARGE_BYTES / large / 1e9, 2),
    )


async def _times(devices: list[str], backend: str) -> dict[str, Any]:
    with Scratch() as folder:
        place = str(folder) if backend == "shared" else f"file://{folder}/meeting"
        errands = [
            Errand(
                task="links",
                device=device,
                options={"rank": rank, "size": len(devices), "backend": backend, "place": place},
            )
            for rank, device in enumerate(devices)
        ]
        answer: dict[str, Any] = (await send(errands))[0]
        return answer


def time_links(device: str, rank: int, size: int, backend: Any, place: str) -> dict[str, float | bool]:
    """In the errand's process."""
    import torch

    from serving.parallel import Layout, connect

    where = torch.device("cpu" if device.startswith("cpu") else "cuda:0")
    parallel = connect(Layout(size, 1, rank), Path(place) if backend == "shared" else place, backend)
    ones = torch.ones(1024, device=where)
    parallel.tensor.all_reduce(ones)
    seconds = {}
    for name, size_bytes in (("small_s", SMALL_BYTES), ("large_s", LARGE_BYTES)):
        tensor = torch.zeros(size_bytes // 4, device=where)
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            parallel.tensor.all_reduce(tensor)
            if where.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        seconds[name] = median(taken)
    is_right = bool((ones == size).all())
    parallel.close()
    return {**seconds, "is_right": is_right}
