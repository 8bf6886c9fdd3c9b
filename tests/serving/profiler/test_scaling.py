"""Shapes beyond the devices present, and which those are."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from placement.cluster import Cluster, Node
from placement.costs.analytic import analytic_profile
from placement.costs.transformer import TransformerConfig
from placement.profile import Shape, StepCost
from placement.units import Bytes
from serving.profiler import present as present_module
from serving.profiler.present import Present, find_present, further_shapes, measured_shapes
from serving.profiler.scaling import scaled_entries

DECODER = TransformerConfig(layers=8, hidden=256, heads=8, kv_heads=4, ffn=512, vocabulary=1000, dtype="fp32")
ENCODER = msgspec.structs.replace(DECODER, architecture="encoder", logits="none", sequence_length=64)
HERE = Present(kind="cpu", device="cpu", count=2, total=8, node_devices=8, nodes=1, memory_bytes=10**10)
EXPERTS = msgspec.structs.replace(DECODER, experts=8, top_k=2)
FIELDS = StepCost.__struct_fields__


def measured(sizes, factor, shapes=((1, 1), (1, 2), (2, 1))):
    """What a machine `factor` times as slow as the analytic one would show."""
    entries = analytic_profile(sizes, "cpu", shapes, () if sizes.causal else (1, 2)).shapes
    return [scaled_by(entry, factor) for entry in entries]


def scaled_by(entry, factor):
    latency = {batch: tuple(factor * part for part in parts) for batch, parts in entry.stage_latency.items()}
    generation = entry.generation
    if generation is not None:
        stages = tuple(stage.times(factor) for stage in generation.stages)
        generation = msgspec.structs.replace(generation, stages=stages)
    return msgspec.structs.replace(entry, kind=None, stage_latency=latency, generation=generation)


@pytest.mark.parametrize("sizes", [DECODER, ENCODER, EXPERTS])
def test_a_machine_that_is_the_analytic_one_times_a_factor_scales_to_just_that(sizes):
    entries = scaled_entries(sizes, measured(sizes, 3.0), HERE)
    shapes = further_shapes(sizes, 2, 8)
    assert {entry.shape for entry in entries} == set(shapes)
    expected = {entry.shape: entry for entry in measured(sizes, 3.0, shapes)}
    for entry in entries:
        wanted = expected[entry.shape]
        assert entry.kind == "cpu"
        for batch, parts in entry.stage_latency.items():
            assert parts == pytest.approx(wanted.stage_latency[batch])
        if sizes.causal:
            for stage, other in zip(entry.generation.stages, wanted.generation.stages, strict=True):
                assert [getattr(stage, field) for field in FIELDS] == pytest.approx(
                    [getattr(other, field) for field in FIELDS]
                )
            assert entry.generation.kv_bytes_per_token == pytest.approx(wanted.generation.kv_bytes_per_token)


def test_what_does_not_fit_the_memory_is_left_out():
    entries = measured(DECODER, 1.0)
    small = max(entry.memory for entry in entries if entry.shape == Shape(1, 2)) // 2
    roomy = scaled_entries(DECODER, entries, HERE)
    tight = scaled_entries(DECODER, entries, replace(HERE, memory_bytes=small))
    assert 0 < len(tight) < len(roomy)
    assert all(entry.memory <= small for entry in tight)


def test_several_nodes_get_entries_within_a_node_and_across():
    wide = replace(HERE, total=8, node_devices=4, nodes=2)
    entries = scaled_entries(DECODER, measured(DECODER, 2.0), wide)
    spans = {(entry.shape, entry.span) for entry in entries}
    assert (Shape(1, 2), "cluster") in spans
    assert (Shape(1, 2), "node") not in spans  # measured
    assert {(Shape(2, 2), "node"), (Shape(2, 2), "cluster"), (Shape(2, 4), "cluster")} <= spans
    assert (Shape(2, 4), "node") not in spans
    by_place = {(entry.shape, entry.span): entry for entry in entries}
    inside, across = by_place[Shape(2, 2), "node"], by_place[Shape(2, 2), "cluster"]
    assert sum(stage.fixed for stage in across.generation.stages) > sum(
        stage.fixed for stage in inside.generation.stages
    )


def test_shapes():
    assert measured_shapes(DECODER, 2) == [Shape(1, 1), Shape(1, 2), Shape(2, 1)]
    assert Shape(3, 1) not in measured_shapes(DECODER, 4)
    assert Shape(1, 3) in measured_shapes(DECODER, 4)
    assert set(further_shapes(DECODER, 4, 8)).isdisjoint(measured_shapes(DECODER, 4))
    assert all(math.log2(shape.devices).is_integer() for shape in further_shapes(DECODER, 8, 64))


def test_the_devices_of_a_cluster_that_are_here(monkeypatch):
    def kinds(cores, gpus, *nodes):
        monkeypatch.setattr(present_module, "count_cores", lambda: cores)
        monkeypatch.setattr(present_module, "count_gpus", lambda: gpus)
        cluster = Cluster(
            tuple(
                Node(name=f"n{number}", devices=devices, kind=kind, memory=Bytes(memory))
                for number, (kind, devices, memory) in enumerate(nodes)
            )
        )
        return [
            (one.kind, one.device, one.count, one.total, one.nodes, one.memory_bytes) for one in find_present(cluster)
        ]

    assert kinds(2, 0, ("cpu", 8, 100)) == [("cpu", "cpu", 2, 8, 1, 100)]
    assert kinds(4, 0, ("cpu", 1, 100), ("cpu", 2, 50)) == [("cpu", "cpu", 3, 3, 2, 50)]
    assert kinds(4, 0, ("v100", 8, 100)) == [("v100", "cuda", 0, 8, 1, 100)]
    assert kinds(4, 2, ("any", 8, 100)) == [("any", "cuda", 2, 8, 1, 100)]
    assert kinds(4, 0, ("any", 8, 100)) == [("any", "cpu", 4, 8, 1, 100)]
