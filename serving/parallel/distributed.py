"""Collectives and channels over torch.distributed's process groups: gloo on CPU, NCCL on GPU, across machines.

With gloo the caller waits in short slices and looks for abort() between them: nothing but the peer's death ends a
gloo operation from outside. With NCCL, operations wait on the device's stream, and abort() ends them there.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from serving.parallel.base import PeerLost, Received
from serving.parallel.header import WORDS, describe, dtype_and_shape

STEP_S = 120.0
"""How long a rank may be behind its peers in a collective before it counts as lost."""
IN_FLIGHT = 4
"""Tensors sent on a channel before the first must have arrived."""
LINGER_S = 2.0
"""How long close() waits for what was sent to arrive."""
_SLICE = timedelta(milliseconds=5)
_FOREVER = timedelta(days=365)  # an idle receiver may wait for long
_DISTRIBUTED: Any = torch.distributed.distributed_c10d
_OPTIONS: dict[str, Any] = {
    "allgather": _DISTRIBUTED.AllgatherOptions,
    "allreduce": _DISTRIBUTED.AllreduceOptions,
    "alltoall_base": _DISTRIBUTED.AllToAllOptions,
    "broadcast": _DISTRIBUTED.BroadcastOptions,
    "gather": _DISTRIBUTED.GatherOptions,
}


class Link:
    """One process group, and the one way to wait for its operations."""

    def __init__(self, group: Any, nccl: bool) -> None:
        self.group = group
        self.device = torch.device("cuda" if nccl else "cpu")
        self._nccl = nccl
        self._reason: str | None = None
        self._under_way = 0

    def check(self) -> None:
        if self._reason is not None:
            raise PeerLost(self._reason)

    def start(self, operation: str, *tensors: Any) -> Any:
        """Start an operation, whose root is rank 0."""
        self.check()
        options = _OPTIONS[operation]()
        options.timeout = _FOREVER
        try:
            work = getattr(self.group, operation)(*tensors, options)
        except RuntimeError as error:
            raise self._lost(error) from None
        self._under_way += 1
        return work

    def finish(self, work: Any, wait_s: float = math.inf) -> None:
        """Wait for an operation: with NCCL, only its stream waits."""
        end = time.monotonic() + wait_s
        while True:
            over = self._nccl or work.is_completed()
            try:
                work.wait() if over else work.wait(_SLICE)
                self._under_way -= 1
                return
            except RuntimeError as error:
                if over:
                    self._under_way -= 1
                    raise self._lost(error) from None
            self.check()
            if time.monotonic() > end:
                self.abort(f"a peer is more than {wait_s:g} s behind")

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._nccl and self.group is not None:
            self.group.abort()

    def close(self) -> None:
        """A group's destructor waits for its operations; a group with one that may never end is left to the exit of
        the process."""
        self._reason = self._reason or "closed"
        if self._under_way and not self._nccl:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        self.group = None

    def _lost(self, error: RuntimeError) -> PeerLost:
        self._reason = self._reason or f"a peer is gone: {str(error).splitlines()[0][:200]}"
        return PeerLost(self._reason)


class DistributedCollectives:
    def __init__(self, link: Link, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._link = link

    def all_reduce(self, tensor: Tensor) -> None:
        whole = tensor.contiguous()
        self._link.finish(self._link.start("allreduce", [whole]), STEP_S)
        if whole is not tensor:
            tensor.copy_(whole)

    def all_gather(self, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._link.finish(self._link.start("allgather", [parts], [tensor.contiguous()]), STEP_S)
        return torch.cat(parts, -1)

    def gather(self, tensor: Tensor) -> Tensor | None:
        wanted = self.size if self.rank == 0 else 0
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(wanted)]
        self._link.finish(self._link.start("gather", [parts] if parts else [], [tensor.contiguous()]), STEP_S)
        return torch.cat(parts, -1) if parts else None

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Received:
        """The counts go ahead, since nobody knows what comes."""
        assert sum(counts) == len(rows)
        each = self.all_gather(torch.tensor(counts, device=self._link.device)).view(self.size, self.size)
        mine = [int(count) for count in each[:, self.rank].tolist()]
        received = rows.new_empty((sum(mine), *rows.shape[1:]))
        if int(each.sum()) > 0:
            splits = [received, rows.contiguous(), mine, list(counts)]
            self._link.finish(self._link.start("alltoall_base", *splits), STEP_S)
        return Received(received, mine)

    def abort(self, reason: str) -> None:
        self._link.abort(reason)

    def close(self) -> None:
        self._link.close()


class Way:
    """One direction between two devices: a process group of two for tensors, and one for what precedes each, on the
    host. Rank 0 sends."""

    def __init__(self, headers: Link, bodies: Link) -> None:
        self._headers, self._bodies = headers, bodies
        self._flying: deque[tuple[Link, Any, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        header = torch.tensor(describe(tensor))
        self._launch(self._headers, header)
        if tensor.numel():
            self._launch(self._bodies, _bytes(tensor.detach().to(self._bodies.device).clone()))
        while len(self._flying) > 2 * IN_FLIGHT:
            self._land()

    def receive(self) -> Tensor:
        header = torch.empty(WORDS, dtype=torch.int64)
        self._headers.finish(self._headers.start("broadcast", [header]))
        dtype, shape = dtype_and_shape(tuple(header.tolist()))
        tensor = torch.empty(shape, dtype=dtype, device=self._bodies.device)
        if tensor.numel():
            self._bodies.finish(self._bodies.start("broadcast", [_bytes(tensor)]), STEP_S)
        return tensor

    def abort(self, reason: str) -> None:
        for link in {self._headers, self._bodies}:
            link.abort(reason)

    def close(self) -> None:
        with contextlib.suppress(PeerLost):
            while self._flying:
                self._land(LINGER_S)
        for link in {self._headers, self._bodies}:
            link.close()

    def _launch(self, link: Link, tensor: Tensor) -> None:
        self._flying.append((link, link.start("broadcast", [tensor]), tensor))

    def _land(self, wait_s: float = math.inf) -> None:
        link, work, _ = self._flying.popleft()
        link.finish(work, wait_s)


class DistributedChannel:
    def __init__(self, outward: Way, inward: Way) -> None:
        self._outward, self._inward = outward, inward

    def send(self, tensor: Tensor) -> None:
        self._outward.send(tensor)

    def receive(self) -> Tensor:
        return self._inward.receive()

    def abort(self, reason: str) -> None:
        self._outward.abort(reason)
        self._inward.abort(reason)

    def close(self) -> None:
        self._outward.close()
        self._inward.close()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
