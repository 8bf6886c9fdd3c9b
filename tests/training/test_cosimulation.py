"""The fluid co-simulation: servers and work are conserved, rules are obeyed, traffic is what it says it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.worlds import fleet, job, nodes, run
from training.cosimulation import (
    Clients,
    Nothing,
    Officer,
    Pool,
    Rule,
    Served,
    Threshold,
    Traffic,
    behind,
    draw,
    fill_that_holds,
    serve,
)
from training.cosimulation.fluid import Seen, late_of
from training.demand import Demand
from training.lending import Terms
from training.simulator import World

POOL = Pool(servers=20, reclaim_s=2.0, slack_s=1.0)
RULES = {
    "off": Nothing,
    "threshold": lambda: Threshold(POOL, 2, every_s=10.0, window_s=5.0),
    "officer": lambda: Officer(POOL, Terms(minimum_s=5.0), step=3),
}


def traffic(seed: int, level: float = 8.0, ticks: int = 300, tick_s: float = 1.0) -> Traffic:
    rng = np.random.default_rng(seed)
    day = 1 + 0.5 * np.sin(np.arange(ticks) / 40)
    burst = np.where(rng.random(ticks) < 0.03, 2.5, 1.0)
    work = level * tick_s * day * burst * rng.gamma(9, 1 / 9, ticks)
    return Traffic(tick_s, work, 10 * work)


def clients(count: int = 6, cv: float = 3.0) -> Clients:
    rate = np.outer(np.arange(1, count + 1), np.array([0.5, 1.0, 2.0]))
    weibull = np.arange(count)[:, None] % 2 == np.zeros(3)
    return Clients(60.0, rate, np.full_like(rate, cv), weibull, np.linspace(100, 1000, count))


def check(served: Served) -> None:
    """Servers are lent, serve, or are on their way back; work is served, late or (within the slack) waits."""
    pool, work = served.pool, served.traffic.work
    assert (served.lent >= 0).all()
    assert (served.serving >= 0).all()
    assert (served.lent + served.serving <= pool.servers).all()
    back = pool.servers - served.lent - served.serving
    asked = np.maximum(-np.diff(served.lent, prepend=0), 0)
    delay = int(np.ceil(pool.reclaim_s / served.traffic.tick_s))
    for tick in range(len(work)):
        assert back[tick] == asked[max(tick - delay + 1, 0) : tick + 1].sum()
    assert (served.late >= -1e-9).all()
    most = served.serving * served.traffic.tick_s
    done = work.sum() - served.late.sum()
    assert done <= most.sum() + pool.slack_s * pool.servers + 1e-6
    assert served.late == pytest.approx(
        late_of(work, served.serving.astype(float), served.traffic.tick_s, pool.slack_s)
    )


@pytest.mark.parametrize("name", sorted(RULES))
@given(seed=st.integers(0, 10_000), level=st.floats(0.5, 25.0))
@settings(max_examples=15, deadline=None)
def test_servers_and_work_are_conserved(name, seed, level):
    check(serve(traffic(seed, level), POOL, RULES[name]()))


def test_off_lends_nothing_and_attains_most():
    served = {name: serve(traffic(0), POOL, rule()) for name, rule in RULES.items()}
    assert not served["off"].lent.any()
    assert served["off"].reclaims == 0
    assert (served["off"].serving == POOL.servers).all()
    for name in ("threshold", "officer"):
        assert served[name].lent_hours > 0
        assert served[name].reclaims > 0
        assert served[name].attainment <= served["off"].attainment


class Says:
    """Lends what it was told, tick by tick."""

    def __init__(self, lent: list[int]) -> None:
        self.lent = list(lent)
        self.seen: list[Seen] = []

    def lend(self, seen: Seen) -> int:
        self.seen.append(seen)
        return self.lent.pop(0)


def test_a_server_serves_again_only_after_its_reclaim_latency():
    rule: Rule = Says([5, 5, 2, 2, 2, 2])
    served = serve(Traffic(1.0, np.full(6, 16.0), np.full(6, 16.0)), POOL, rule)
    assert served.lent.tolist() == [0, 5, 5, 2, 2, 2]
    assert served.serving.tolist() == [20, 15, 15, 15, 15, 18]
    # One unit a tick is too much; 15 fit into the slack.
    assert served.late.tolist() == [0, 0, 0, 0, 0, 0]
    assert [seen.back for seen in rule.seen] == [None, None, None, None, None, 2.0]


def test_work_that_would_wait_longer_than_the_slack_is_late():
    served = serve(Traffic(1.0, np.array([30.0, 30.0, 0.0, 0.0]), np.ones(4)), POOL, Nothing())
    # 20 are served and 10 wait; then 40 fit, of which 20 are served and 20 wait.
    assert served.late.tolist() == [0, 0, 0, 0]
    served = serve(Traffic(1.0, np.array([50.0, 30.0, 0.0]), np.ones(3)), POOL, Nothing())
    assert served.late.tolist() == [10, 10, 0]
    assert served.attainment == pytest.approx(1 - 20 / 80)


def test_the_demand_of_a_run_is_what_training_cannot_have():
    served = serve(traffic(3), POOL, RULES["officer"]())
    demand = served.demand
    place = np.searchsorted(demand.time, np.arange(len(served.lent)), side="right") - 1
    assert (demand.servers[place] == POOL.servers - served.lent).all()
    assert (np.diff(demand.servers) != 0).all()
    where = fleet(nodes(1, 2), nodes(20, 1, "t4", "t"), lendable=frozenset(f"t{n}" for n in range(20)))
    outcome = run([job(n, 10 * n, 60, 2) for n in range(20)], World(where, demand), "lyra")
    alone = run([job(n, 10 * n, 60, 2) for n in range(20)], fleet(nodes(1, 2)), "lyra")
    assert outcome.summary()["mean_queue"] < alone.summary()["mean_queue"]


def test_less_headroom_lends_more_and_attains_less():
    runs = [serve(traffic(5, ticks=3000), POOL, Threshold(POOL, headroom, window_s=30)) for headroom in (0, 3, 6, 9)]
    hours, attained = [one.lent_hours for one in runs], [one.attainment for one in runs]
    assert hours == sorted(hours, reverse=True)
    assert attained == sorted(attained)


def test_clients_are_drawn_at_their_rates_and_burstiness():
    smooth, bursty = (draw(clients(cv=cv), 7200, 1.0, seed=3) for cv in (0.2, 4.0))
    for drawn in (smooth, bursty):
        assert drawn.tokens.sum() == pytest.approx(drawn.expected_tokens.sum(), rel=0.05)
        assert len(drawn.tokens) == 7200
    level = smooth.expected_tokens
    assert np.std(bursty.tokens / level) > 2 * np.std(smooth.tokens / level)


def test_the_week_comes_again_drawn_anew():
    one, two = draw(clients(), 360, 1.0, seed=1), draw(clients(), 360, 1.0, seed=1)
    assert (one.tokens == two.tokens).all()
    assert (one.expected_tokens[:180] == one.expected_tokens[180:]).all()
    assert (one.tokens[:180] != one.tokens[180:]).any()
    later = draw(clients(), 180, 1.0, seed=1, start_s=60.0)
    assert (later.expected_tokens[:60] == one.expected_tokens[60:120]).all()


def test_traffic_behind_a_curve_needs_those_servers():
    needed = Demand(np.array([0.0, 300.0, 600.0]), np.array([10, 40, 20]))
    drawn = draw(clients(), 900, 1.0, seed=2)
    fill = fill_that_holds(needed, drawn, 0.99, slack_s=1.0)
    assert 0 < fill < 1
    made = behind(needed, drawn, fill)
    serving = np.repeat(needed.servers, 300).astype(float)
    assert late_of(made.work, serving, 1.0, 1.0).sum() / made.work.sum() == pytest.approx(0.01, abs=1e-4)
    means = made.work.reshape(3, 300).mean(axis=1)
    assert means == pytest.approx(fill * needed.servers, rel=0.2)
    part = made.of(300, 600)
    assert part.seconds == 300
    assert (part.work == made.work[300:600]).all()
