"""What is to be sent: the process asked for, the same for every number of senders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.demand import make_demand
from loadgen.errors import TrafficError
from loadgen.results.figures import gap_cv
from loadgen.target.models import TargetModel
from loadgen.traffic_options import TrafficOptions

CHAT, EMBED = TargetModel("chat", "generate", 100), TargetModel("embed", "embed")


def demand(models=(CHAT, EMBED), **options):
    return make_demand(TrafficOptions(**options), models)


SMALL = demand(rate="50", duration="10s")


@given(senders=st.integers(1, 9))
def test_senders_share_one_process_exactly(senders):
    shares = [SMALL.rows_of(index, senders) for index in range(senders)]
    together = np.sort(np.concatenate(shares))
    assert np.array_equal(together, np.arange(len(SMALL)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_rate_and_cv_are_those_asked_for_by_model():
    drawn = demand(rate="100", cv="chat=1,embed=4", mix="chat=20%,embed=80%", duration="1000s")
    for index, (rate, cv) in enumerate(((20, 1), (80, 4))):
        times = drawn.arrival_s[drawn.model == index]
        assert times.size / 1000 == pytest.approx(rate, rel=0.05)
        assert gap_cv(times) == pytest.approx(cv, rel=0.05)
    assert drawn.asked_per_s == pytest.approx((20, 80))


def test_stages_change_rate_and_cv_one_after_the_other():
    drawn = demand((EMBED,), stages="20:1,100:3", duration="200s")
    assert drawn.duration_s == 400
    for stage, (rate, cv) in enumerate(((20, 1), (100, 3))):
        times = drawn.arrival_s[drawn.stage == stage]
        assert times.min() >= 200 * stage
        assert times.max() < 200 * (stage + 1)
        assert times.size / 200 == pytest.approx(rate, rel=0.1)
        assert gap_cv(times) == pytest.approx(cv, rel=0.1)


def test_the_same_seed_gives_the_same_and_another_another():
    again, other = demand(rate="50", duration="10s"), demand(rate="50", duration="10s", seed=1)
    assert np.array_equal(again.arrival_s, SMALL.arrival_s)
    assert np.array_equal(again.prompt_tokens, SMALL.prompt_tokens)
    assert not np.array_equal(other.arrival_s[:50], SMALL.arrival_s[:50])
    stages = demand((EMBED,), stages="50,50", duration="10s")
    first, second = (stages.arrival_s[stages.stage == at] - 10 * at for at in (0, 1))
    assert not np.allclose(first[:50], second[:50])


def test_tokens_are_as_typed_and_fit_the_model():
    drawn = demand(rate="100", duration="100s", prompt_tokens="chat=500~1,embed=7", output_tokens="40")
    chat, embed = drawn.model == 0, drawn.model == 1
    assert (drawn.output_tokens[chat] == 40).all()
    assert (drawn.output_tokens[embed] == 0).all()
    assert (drawn.prompt_tokens[embed] == 7).all()
    assert drawn.prompt_tokens[chat].min() >= 1
    assert (drawn.prompt_tokens[chat] + drawn.output_tokens[chat]).max() == 100
    assert 0 < drawn.shortened < chat.sum()


def test_a_trace_is_replayed_as_it_is(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [(0.5, 10, 3), (0.75, 20, 4), (1.25, 30, 5), (9.0, 1, 1)]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{a},{p},{o}\n" for a, p, o in rows))
    replayed = demand((TargetModel("chat"),), trace=str(path), duration="5s")
    assert replayed.arrival_s.tolist() == [0.5, 0.75, 1.25]
    assert replayed.prompt_tokens.tolist() == [10, 20, 30]
    assert replayed.output_tokens.tolist() == [3, 4, 5]
    later = demand((TargetModel("chat"),), trace=str(path), duration="5s", trace_start="1s", output_tokens="9")
    assert later.arrival_s.tolist() == [0.25]
    assert later.output_tokens.tolist() == [9]
    with pytest.raises(TrafficError, match=r"^--trace .*no such file"):
        demand(trace=str(tmp_path / "none.csv"))


def test_a_trace_scales_in_rate_and_splits_by_the_mix(tmp_path):
    path = tmp_path / "trace.csv"
    times = np.sort(np.random.default_rng(0).uniform(0, 600, 6000)).round(6)
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{time},5,5\n" for time in times))
    scaled = demand(trace=str(path), duration="600s", rate_scale="3", mix="chat=3,embed=1")
    assert len(scaled) == pytest.approx(18000, rel=0.05)
    assert (scaled.model == 0).mean() == pytest.approx(0.75, abs=0.02)


def test_a_recorded_workload_names_its_models(tmp_path):
    path = tmp_path / "workload.npz"
    np.savez(path, arrival=np.array([0.1, 0.2, 0.3]), model=np.array([0, 1, 1], dtype=np.int32))
    replayed = demand(trace=str(path), duration="1s", prompt_tokens="5")
    assert replayed.model.tolist() == [0, 1, 1]
    with pytest.raises(TrafficError, match="model 1 does not exist"):
        demand((CHAT,), trace=str(path), duration="1s")


@pytest.mark.parametrize("name", ["azure-code", "azure-conv", "servegen"])
def test_named_traces_are_looked_for_where_the_data_are(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    with pytest.raises(TrafficError, match=f"^--trace {name}: .*set PENSTOCK_DATA"):
        demand(trace=name)


def write_servegen(path):
    """Two clients, two windows of ten minutes."""
    rate, cv, dist = np.full((2, 2), 5.0), np.full((2, 2), 2.0), np.ones((2, 2))
    np.savez(path, client_id=np.array([3, 8]), window_start_s=np.arange(2) * 600.0, rate=rate, cv=cv, dist=dist)


def test_clients_of_servegen_bring_their_lengths(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    folder = tmp_path / "data" / "servegen"
    folder.mkdir(parents=True)
    write_servegen(folder / "m-large_days1-7_rate_cv.npz")
    columns = [f"{side}_tokens_p{p}" for side in ("input", "output") for p in (10, 25, 50, 75, 90, 99)]
    lines = [",".join(["client", *columns])]
    lines += [",".join(map(str, [client, *[client * 10] * 6, *[client] * 6])) for client in (3, 8)]
    (folder / "m-large_client_tokens.csv").write_text("\n".join(lines) + "\n")
    drawn = demand((TargetModel("a"), TargetModel("b")), trace="servegen", duration="100s", rate_scale="2")
    assert len(drawn) == pytest.approx(2000, rel=0.2)
    assert set(drawn.prompt_tokens[drawn.model == 0]) == {30}
    assert set(drawn.output_tokens[drawn.model == 1]) == {8}


@pytest.mark.parametrize(
    ("trace", "models", "options", "message"),
    [
        ("s.npz", "ab", {"mix": "a=1,b=2"}, "^--mix: this trace itself says"),
        ("w.npz", "ab", {"mix": "a=1,b=2"}, "^--mix: this trace itself says"),
        ("s.npz", "abc", {}, "^--models: 3 models get traffic, but the trace has 2 clients"),
        ("s.npz", "a", {"duration": "2000s"}, "^--duration: .*the trace ends at 1200 s"),
        ("s.npz", "a", {"trace_start": "2000s"}, "^--trace-start: "),
        ("t.csv", "a", {"trace_start": "100s"}, "^--trace-start: the trace has no request from there"),
        ("t.csv", "a", {"trace_start": "10s", "duration": "1s"}, "^--trace: has no request in the part"),
        ("t.csv", "a", {"rate_scale": "1e6", "duration": "9000s"}, "^--rate-scale: about"),
    ],
)
def test_what_is_wrong_with_a_replay_names_the_option(trace, models, options, message, tmp_path):
    write_servegen(tmp_path / "s.npz")
    np.savez(tmp_path / "w.npz", arrival=np.array([0.1]), model=np.array([0], dtype=np.int32))
    rows = "".join(f"{60 * n},5,5\n" for n in range(2)) + "".join(f"{90 + n / 1e3},5,5\n" for n in range(100))
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    with pytest.raises(TrafficError, match=message):
        demand([TargetModel(name) for name in models], trace=str(tmp_path / trace), **options)


def test_a_trace_may_begin_at_its_beginning(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0.5,5,5\n")
    assert demand((CHAT,), trace=str(tmp_path / "t.csv"), trace_start="0").arrival_s.tolist() == [0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": "0"}, "^--cv: "),
        ({"cv": "nope=3"}, r"^--cv\.nope: "),
        ({"mix": "chat=x"}, "^--mix: "),
        ({"mix": "3"}, "^--mix: "),
        ({"rate": "1e-9", "duration": "1s"}, "^--rate: no request"),
    ],
)
def test_bad_traffic_is_named(options, message):
    with pytest.raises(TrafficError, match=message):
        demand(**options)
