"""What a plan reckons with, from profiles and the configuration."""

from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from serving.controller.planning import paced


def test_slower_workers_take_longer_and_touch_no_more_experts():
    cost = StepCost(0.1, 0.2, 0.01, 0.001, 0.02, 0.002, experts=0.4, expert_share=0.25)
    shape = ShapeProfile(1, 1, (Bytes(1),), {1: (0.5,)}, Generation((cost,), (8.0,)))
    (slow,) = paced(Profile((shape,)), 40.0).shapes
    assert slow.stage_latency == {1: (20.0,)}
    assert slow.generation.kv_bytes_per_token == (8.0,)
    assert slow.generation.stages[0].expert_share == 0.25
    for load in ((0, 1, 0, 5), (16, 3, 20, 100)):
        assert abs(slow.generation.stages[0].seconds(*load) / cost.seconds(*load) - 40.0) < 1e-9
