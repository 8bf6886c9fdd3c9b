"""What a plan reckons with, from profiles and the configuration."""

from placement.files import convert
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from serving.config import ServeConfig
from serving.controller.planning import make_problem, paced


def test_slower_workers_take_longer_and_touch_no_more_experts():
    cost = StepCost(0.1, 0.2, 0.01, 0.001, 0.02, 0.002, experts=0.4, expert_share=0.25)
    shape = ShapeProfile(1, 1, (Bytes(1),), {1: (0.5,)}, Generation((cost,), (8.0,)))
    (slow,) = paced(Profile((shape,)), 40.0).shapes
    assert slow.stage_latency == {1: (20.0,)}
    assert slow.generation.kv_bytes_per_token == (8.0,)
    assert slow.generation.stages[0].expert_share == 0.25
    for load in ((0, 1, 0, 5), (16, 3, 20, 100)):
        assert abs(slow.generation.stages[0].seconds(*load) / cost.seconds(*load) - 40.0) < 1e-9


def test_an_engine_of_others_is_planned_on_one_node():
    spans = ((1, None), (2, None), (2, "node"), (2, "cluster"), (4, None), (8, "cluster"))
    shapes = [ShapeProfile(1, pp, (Bytes(1),) * pp, {1: (0.5,) * pp}, span=span) for pp, span in spans]
    profile = Profile(tuple(shapes))
    node = {"devices": 8, "kind": "cpu", "memory": "1GiB"}
    models = [{"name": "ours", "path": "m", "slo": 1}, {"name": "theirs", "path": "m", "slo": 1, "engine": "vllm"}]
    cluster = {"nodes": [{"name": name} | node for name in ("a", "b")]}
    config = convert({"cluster": cluster, "models": models}, ServeConfig, "config")
    ours, theirs = make_problem(config, {}, {"ours": profile, "theirs": profile}).models
    assert ours.profile == profile
    assert [(shape.pp, shape.span) for shape in theirs.profile.shapes] == [(1, "node"), (2, "node"), (4, "node")]
