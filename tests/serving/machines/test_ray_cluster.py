"""Groups of real workers on a Ray cluster of three nodes on this machine."""

import asyncio
import os
import signal

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; pip install 'penstock[ray]' brings it")

from benchmarks.harness.ray_nodes import ray_nodes
from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.units import Bytes
from serving.controller.probe import Probe, probe
from serving.machines.ray_cluster import connect_ray
from serving.machines.ray_launcher import import_ray
from serving.small_models.random import make_random
from serving.worker.event_loop import run
from serving.worker.group import GroupLost, GroupSpec, start_group
from serving.worker.messages import ModelSpec

WANTED = Cluster((Node("any", 2, Bytes(2**30), "cpu"),))

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours


def test_groups_are_started_on_the_nodes_the_plan_names_and_nothing_of_them_stays(tmp_path):
    """Within a node and across; a worker that is killed is the end of its group, a room's end that of its processes."""
    make_random(tmp_path, hidden=64, heads=8, ffn=128, layers=2, vocabulary=300)
    heard = []

    async def scenario(address):
        with pytest.raises(InputError, match="no Ray cluster can be joined"):
            await connect_ray("127.0.0.1:1", WANTED)
        cluster = await connect_ray(address, WANTED, lambda *what: heard.append(what))
        found = await cluster.look()
        assert [(node.name, node.devices) for node in found.nodes] == [("n0", 2), ("n1", 1), ("n2", 1)]
        with pytest.raises(InputError, match="node 'n9' is not in the cluster"):
            async with cluster.open_room("g", ("n9/0",)):
                pass
        for devices, backend in ((("n0/0", "n0/1"), "shared"), (("n1/0", "n2/0"), "gloo")):
            async with cluster.open_room("g", devices) as room:
                assert room.backend == backend
                names = tuple(cluster.devices[device] for device in devices)
                spec = GroupSpec(name="g", devices=names, pp=2, backend=room.backend, tcp=room.tcp)
                group = await start_group(spec, cluster)
                assert [handle.node for handle in group.handles] == [device[:2] for device in devices]
                await group.load(ModelSpec(name="chat", path=str(tmp_path), kv_bytes=2**20))
                await probe(group, "chat", Probe("generate", [1, 2, 3]))
                pids = [handle.pid for handle in group.handles]
                os.kill(pids[1], signal.SIGKILL)
                ended = await asyncio.wait_for(group.handles[1].wait(), 10)
                assert (ended.signal, ended.code) == (signal.SIGKILL, None)
                with pytest.raises(GroupLost, match="rank 1"):
                    await probe(group, "chat", Probe("generate", [1, 2, 3]))
                await group.stop()
            assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
        with pytest.raises(InputError, match="no room is open"):
            await cluster.start(group._worker(0, "cpu:0", 1.0))

    with ray_nodes({"n0": 2, "n1": 1, "n2": 1}) as nodes:
        try:
            run(asyncio.wait_for(scenario(nodes.address), 120))
        finally:
            import_ray().shutdown()
    assert any(worker == "g/0" and node in ("n0", "n1") for worker, node, _ in heard)
