"""What the placement is there for, on made-up loads of a large model's size: as much better than EPLB as promised."""

from __future__ import annotations

import numpy as np
import pytest

from moe.pool import Pool
from moe.replication import Eplb, Penstock, Task
from tests.moe.test_replication import best_balance, drifted, even_balance, zipf


@pytest.mark.parametrize(("devices", "slots", "goal"), [(32, 288, 0.995), (64, 320, 0.99)])
def test_a_large_skewed_load(devices, slots, goal):
    load, pool = zipf(4, 256, 1.25), Pool.even(devices, slots)
    ours, eplb = Penstock().place(Task(load, pool)), Eplb().place(Task(load, pool))
    assert best_balance(load, ours, pool) >= goal > even_balance(load, eplb, pool)
    drift = drifted(load, draws=4)
    kept = np.mean([best_balance(later, ours, pool) for later in drift])
    assert kept > 0.03 + np.mean([best_balance(later, eplb, pool) for later in drift])


def test_one_slot_a_device_is_no_worse_than_eplb():
    load, pool = zipf(4, 256, 1.25), Pool.even(320, 320)
    ours, eplb = Penstock().place(Task(load, pool)), Eplb().place(Task(load, pool))
    assert best_balance(load, ours, pool) >= even_balance(load, eplb, pool) - 1e-9
