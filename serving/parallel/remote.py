"""Connects the processes of a group through torch.distributed: the store they meet at, and the groups made from it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed

from placement.errors import InputError
from serving.parallel import Parallel
from serving.parallel.base import Alone, Channel, Collectives, PeerLost
from serving.parallel.distributed import STEP_S, DistributedChannel, DistributedCollectives, Link, Way
from serving.parallel.layout import Layout

HOST_VARIABLE = "PENSTOCK_HOST"
"""This machine's address in the cluster, where it is of one."""

dist: Any = torch.distributed


def connect_remote(layout: Layout, address: str, nccl: bool, wait_s: float) -> Parallel:
    """Every rank makes its groups in the same order, stage by stage, so that none waits for one who waits for it."""
    if nccl and not dist.is_nccl_available():
        raise InputError("backend nccl: this torch has none; use gloo, or shared on one machine")
    store = open_store(layout, address, wait_s)
    _call_the_roll(layout, store, wait_s)
    maker = _Maker(layout, store, nccl, wait_s)
    tensor = maker.stage()
    previous = None if layout.previous is None else maker.channel(layout.previous)
    following = None if layout.next is None else maker.channel(layout.next)
    return Parallel(tensor, previous, following)


def open_store(layout: Layout, address: str, wait_s: float) -> Any:
    """The store at tcp://host:port, which rank 0 serves, or file:///path."""
    url = urlsplit(address)
    if url.scheme == "file" and url.path:
        return dist.FileStore(url.path, layout.devices)
    if url.scheme != "tcp" or not url.hostname or not url.port:
        raise InputError(f"{address}: a store's address is tcp://host:port or file:///path")
    try:
        serves = layout.rank == 0
        timeout = timedelta(seconds=wait_s)
        return dist.TCPStore(url.hostname, url.port, layout.devices, serves, timeout, wait_for_workers=False)
    except RuntimeError:
        if layout.rank == 0:
            raise InputError(f"{address}: rank 0 cannot serve the store there") from None
        raise PeerLost(f"rank 0 did not serve {address} within {wait_s:g} s, where rank {layout.rank} waits") from None


def _call_the_roll(layout: Layout, store: Any, wait_s: float) -> None:
    keys = {f"came-{rank}": rank for rank in range(layout.devices)}
    store.set(f"came-{layout.rank}", "1")
    try:
        store.wait(list(keys), timedelta(seconds=wait_s))
    except RuntimeError:
        missing = [f"rank {rank}" for key, rank in keys.items() if not store.check([key])]
        who = ", ".join(missing) or "somebody"
        raise PeerLost(
            f"{who} of {layout.devices} did not come within {wait_s:g} s, where rank {layout.rank} waits"
        ) from None


class _Maker:
    def __init__(self, layout: Layout, store: Any, nccl: bool, wait_s: float) -> None:
        self._layout, self._store, self._nccl = layout, store, nccl
        self._timeout = timedelta(seconds=wait_s)

    def stage(self) -> Collectives:
        layout = self._layout
        if layout.tp == 1:
            return Alone()
        link = self._link(f"stage-{layout.stage}", layout.tp_rank, layout.tp, self._nccl)
        return DistributedCollectives(link, layout.tp_rank, layout.tp)

    def channel(self, other: int) -> Channel:
        """Both ends make the way from the lower rank first."""
        low, high = sorted((self._layout.rank, other))
        up, down = self._way(low, high), self._way(high, low)
        return DistributedChannel(up, down) if self._layout.rank == low else DistributedChannel(down, up)

    def _way(self, sender: int, receiver: int) -> Way:
        rank = 0 if self._layout.rank == sender else 1
        headers = self._link(f"headers-{sender}-{receiver}", rank, 2, False)
        bodies = self._link(f"bodies-{sender}-{receiver}", rank, 2, True) if self._nccl else headers
        return Way(headers, bodies)

    def _gloo(self, store: Any, rank: int, size: int) -> Any:
        """At the address that others know this machine by: what its own name leads to may be itself alone."""
        host = os.environ.get(HOST_VARIABLE)
        if host is None:
            return dist.ProcessGroupGloo(store, rank, size, self._timeout)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = self._timeout
        return dist.ProcessGroupGloo(store, rank, size, options)

    def _link(self, name: str, rank: int, size: int, nccl: bool) -> Link:
        store = dist.PrefixStore(name, self._store)
        try:
            if nccl:
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timedelta(seconds=STEP_S)
                return Link(dist.ProcessGroupNCCL(store, rank, size, options), nccl)
            return Link(self._gloo(store, rank, size), nccl)
        except RuntimeError as error:
            raise PeerLost(f"a peer left while rank {self._layout.rank} made {name}: {error}") from None
