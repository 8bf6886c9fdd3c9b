"""Nodes of a cluster that others keep, by the names and kinds that plans know."""

import pytest

from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.units import Bytes
from serving.machines.nodes import ClusterNode, make_cluster, name_nodes

CPUS = Node("any name", 4, Bytes(100), "cpu", Bytes(7))
A100, ANY = Node("a", 8, Bytes(80), "A100"), Node("b", 8, Bytes(40), "any")


def node(id, name, cpus=2, gpus=0, accelerator=""):
    return ClusterNode(id=id, name=name, host="10.0.0.1", cpus=cpus, gpus=gpus, accelerator=accelerator)


def names(found):
    return [one.entry.name for one in found]


def test_an_entry_stands_for_all_nodes_of_its_kind():
    found = name_nodes([node("2", "b", cpus=9), node("1", "a", cpus=1)], Cluster((CPUS,)))
    cluster = make_cluster(found)
    assert cluster.nodes == (Node("a", 1, Bytes(100), "cpu", Bytes(7)), Node("b", 4, Bytes(100), "cpu", Bytes(7)))
    assert found[0].devices == {"a/0": "cpu:0"}


def test_nodes_of_one_name_differ_and_keep_their_names():
    twins = [node("123456789", "10.0.0.1"), node("abcdefghi", "10.0.0.1")]
    found = name_nodes(twins, Cluster((CPUS,)))
    assert names(found) == ["10.0.0.1", "10.0.0.1-abcdef"]
    before = {one.node.id: one.entry.name for one in found}
    assert names(name_nodes(twins[1:], Cluster((CPUS,)), before)) == ["10.0.0.1-abcdef"]
    assert names(name_nodes([*twins[1:], node("x", "10.0.0.1")], Cluster((CPUS,)), before)) == [
        "10.0.0.1",
        "10.0.0.1-abcdef",
    ]
    assert names(name_nodes([node("1", "a/b")], Cluster((CPUS,)))) == ["a-b"]


@pytest.mark.parametrize(
    ("found", "wanted", "kind"),
    [
        (node("1", "n", gpus=4, accelerator="A100"), (CPUS, A100, ANY), "A100"),
        (node("1", "n", gpus=4, accelerator="H100"), (CPUS, A100, ANY), "any"),
        (node("1", "n", gpus=4, accelerator="H100"), (CPUS, A100), None),
        (node("1", "n", gpus=4), (CPUS, A100), "A100"),
        (node("1", "n"), (A100, CPUS), "cpu"),
        (node("1", "n"), (A100,), None),
        (node("1", "n", cpus=0), (CPUS,), None),
    ],
)
def test_a_node_serves_as_the_kind_it_is(found, wanted, kind):
    named = name_nodes([found], Cluster(wanted))
    assert [one.entry.kind for one in named] == ([] if kind is None else [kind])
    if kind in ("A100", "any"):
        assert named[0].devices["n/3"] == "cuda:3"
        assert len(named[0].devices) == 4


def test_a_cluster_without_devices_is_none():
    with pytest.raises(InputError, match="no node of it has devices"):
        make_cluster([])
