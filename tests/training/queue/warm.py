"""Imported where controllers are forked from, and before tests that count seconds: what is compiled is there then."""

from tests.training.queue.worlds import cluster
from training.policies import policy_named
from training.queue.decision import warm_up

for name in ("fcfs", "penstock", "priority", "srtf"):
    warm_up(policy_named(name), cluster())
