"""How a group comes together: whole layouts, late starters, absent ranks, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from placement.errors import InputError
from serving.parallel import Alone, Layout, PeerLost, connect
from tests.serving.parallel.processes import Rank, Ranks

SHARED = Path("/dev/shm")


def pipeline(rank: Rank) -> list[float]:
    """Each stage adds its ranks' sum to what comes; the last stage's ranks return what came out."""
    came = []
    for step in range(50):
        value = torch.tensor([float(step)])
        if rank.parallel.previous is not None:
            value = rank.parallel.previous.receive().clone()
        part = torch.tensor([float(1 + rank.layout.rank)])
        rank.parallel.tensor.all_reduce(part)
        value += part
        if rank.parallel.next is not None:
            rank.parallel.next.send(value)
        came.append(value.item())
    return came


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_two_by_two(backend, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(pipeline, 2, 2, rendezvous, backend, late={1: 0.5, 2: 1.0}) as ranks:
        came = ranks.hear_all()
    assert came[0] == came[1] == [step + 3 for step in range(50)]
    assert came[2] == came[3] == [step + 10 for step in range(50)]


def test_a_killed_groups_directory_can_be_used_again(meeting_place):
    for rank in (0, 1):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(meeting_place / f"{rank}.sock"))
    with Ranks(pipeline, 2, 1, meeting_place, late={0: 0.3}) as ranks:
        assert ranks.hear_all() == [[step + 3 for step in range(50)]] * 2
    assert list(meeting_place.iterdir()) == []


def stay(rank: Rank) -> str:
    rank.say("here")
    time.sleep(600)
    return "never"


def test_nothing_is_left_of_a_killed_group(meeting_place):
    before = set(os.listdir(SHARED)) if SHARED.exists() else set()
    with Ranks(stay, 2, 2, meeting_place) as ranks:
        ranks.hear_all()
        assert list(meeting_place.iterdir()) == []
        for rank in range(4):
            ranks.kill(rank)
    left = set(os.listdir(SHARED)) - before if SHARED.exists() else set()
    assert {name for name in left if "penstock" in name or "psm" in name} == set()


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_who_did_not_come_is_named(backend, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(stay, 2, 2, rendezvous, backend, wait_s=1.0, absent=(3,)) as ranks:
        for rank in (1, 2):
            with pytest.raises(AssertionError, match="rank 3 of 4 did not come within 1 s"):
                ranks.hear(rank)


def test_the_one_who_serves_the_store_is_named():
    port = _free_port()
    with pytest.raises(PeerLost, match="rank 0 did not serve"):
        connect(Layout(2, 1, 1), f"tcp://127.0.0.1:{port}", "gloo", wait_s=0.5)


def test_a_store_over_tcp(meeting_place):
    with Ranks(pipeline, 2, 1, f"tcp://127.0.0.1:{_free_port()}", "gloo") as ranks:
        assert ranks.hear_all() == [[step + 3 for step in range(50)]] * 2


@pytest.mark.parametrize("address", ["/tmp/here", "tcp://host", "http://host:1", "tcp://:80"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InputError, match="tcp://host:port"):
        connect(Layout(2, 1, 0), address, "gloo", wait_s=0.1)


def test_a_path_too_long_for_a_socket_is_refused(meeting_place):
    with pytest.raises(InputError, match="bytes"):
        connect(Layout(2, 1, 0), meeting_place / ("x" * 100), wait_s=0.1)


def test_a_directory_that_is_not_there_is_refused(meeting_place):
    with pytest.raises(InputError, match="no directory"):
        connect(Layout(2, 1, 0), meeting_place / "nowhere", wait_s=0.1)


def test_a_guest_of_another_layout_is_refused(meeting_place):
    with Ranks(stay, 3, 1, meeting_place, wait_s=10.0, absent=(2,)) as ranks:
        with pytest.raises((InputError, PeerLost)):
            connect(Layout(2, 2, 2), meeting_place, wait_s=2.0)
        with pytest.raises(AssertionError, match="another layout"):
            ranks.hear(0)


def test_one_device_needs_nobody():
    parallel = connect(Layout(1, 1, 0), "/nowhere")
    assert isinstance(parallel.tensor, Alone)
    assert parallel.previous is parallel.next is None


def test_the_door_loads_nothing_heavy():
    loaded = "import sys, serving.parallel; sys.exit(bool({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", loaded], timeout=60, check=False).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
