"""traffic_from_spec: every kind, the streams' independence, and the one line a bad description gets."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import TrafficError
from loadgen.spec import traffic_from_spec
from loadgen.splits import power_law_split, uniform_split
from loadgen.workload import Arrivals

MODELS = ["a", "b", "c"]
GAMMA = {"kind": "gamma", "duration": 300, "seed": 0, "rates": {"a": 5, "b": 10.0, "c": 1}, "cv": 3}
KINDS = {
    "gamma": {},
    "poisson": {},
    "on_off": {"mean_on": 5, "mean_off": 10},
    "day_curve": {"period": 100, "amplitude": 0.8, "phase": {"a": 0, "b": 1, "c": 2}},
}


def spec_of(kind, **changes):
    spec = {"kind": kind, "duration": 200, "seed": 3, "rates": {"a": 4, "b": 8, "c": 2}} | KINDS[kind]
    return spec | changes


def times_of(workload, model):
    return workload.arrival[workload.model == model]


def refusal(spec, models=MODELS, base=None):
    with pytest.raises(TrafficError) as caught:
        traffic_from_spec(spec, models, base)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_design_example_gives_the_rates_asked_for():
    counts = np.mean(
        [np.bincount(traffic_from_spec(GAMMA | {"seed": s}, MODELS).model, minlength=3) for s in range(40)],
        axis=0,
    )
    assert counts == pytest.approx([1500, 3000, 300], rel=0.12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_valid_workload(kind):
    workload = traffic_from_spec(spec_of(kind), MODELS)
    assert isinstance(workload, Arrivals)
    assert (workload.arrival.dtype, workload.model.dtype) == (np.float64, np.int32)
    assert set(workload.model.tolist()) == {0, 1, 2}
    assert len(workload) == pytest.approx(200 * 14, rel=0.5)
    assert workload.prompt_tokens is None


@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32 - 1), other=st.floats(0, 20))
def test_a_models_arrivals_do_not_depend_on_the_others(kind, seed, other):
    spec = spec_of(kind, seed=seed)
    here = traffic_from_spec(spec, MODELS)
    again = traffic_from_spec(spec, MODELS)
    assert np.array_equal(here.arrival, again.arrival)
    assert np.array_equal(here.model, again.model)
    changed = traffic_from_spec(spec | {"rates": {"a": other, "b": 8}}, MODELS)
    assert np.array_equal(times_of(here, 1), times_of(changed, 1))
    assert ((here.arrival >= 0) & (here.arrival < 200)).all()


def test_models_and_seeds_have_streams_of_their_own():
    spec = spec_of("gamma", rates=dict.fromkeys(MODELS, 5))
    first, other = traffic_from_spec(spec, MODELS), traffic_from_spec(spec | {"seed": 4}, MODELS)
    assert not np.array_equal(times_of(first, 0), times_of(first, 1))
    assert not np.array_equal(times_of(first, 0), times_of(other, 0))


def test_ties_are_in_order_of_model(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(path, arrival=[1.0, 1.0, 1.0, 2.0], model=np.array([2, 0, 1, 0]))
    workload = traffic_from_spec({"kind": "replay", "trace": "w.npz", "resample": False}, MODELS, tmp_path)
    assert workload.model.tolist() == [0, 1, 2, 0]


def test_total_rate_is_split():
    even = traffic_from_spec({"kind": "poisson", "duration": 2000, "total_rate": 30}, MODELS)
    assert np.bincount(even.model) == pytest.approx([20_000] * 3, rel=0.03)
    skewed = traffic_from_spec(
        {"kind": "poisson", "duration": 2000, "total_rate": 30, "split": {"power_law": 1}}, MODELS
    )
    assert np.bincount(skewed.model) == pytest.approx([32_727, 16_364, 10_909], rel=0.04)


@given(total=st.floats(0, 1e6), models=st.integers(1, 200), exponent=st.floats(0, 5))
def test_splits_fall_and_sum_to_the_total(total, models, exponent):
    rates = power_law_split(total, models, exponent)
    assert rates.sum() == pytest.approx(total)
    assert (np.diff(rates) <= 0).all()
    assert rates[-1] * models**exponent == pytest.approx(rates[0])
    assert uniform_split(total, models) == pytest.approx(np.full(models, total / models))


def test_burstiness_is_another_name_for_cv():
    by_cv = traffic_from_spec(GAMMA | {"cv": 2}, MODELS)
    spec = {key: value for key, value in GAMMA.items() if key != "cv"}
    by_burstiness = traffic_from_spec(spec | {"burstiness": 0.25}, MODELS)
    assert np.array_equal(by_cv.arrival, by_burstiness.arrival)


def test_cv_may_differ_by_model():
    spec = {
        "kind": "gamma",
        "duration": 5000,
        "rates": dict.fromkeys(MODELS, 20),
        "cv": {"a": 0.5, "b": 1, "c": 4},
    }
    workload = traffic_from_spec(spec, MODELS)
    for model, cv in enumerate((0.5, 1, 4)):
        gaps = np.diff(times_of(workload, model))
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_windowed_on_off():
    spec = GAMMA | {"kind": "on_off", "window": 20, "p_on": 0.3, "off_level": 0.01, "duration": 20_000}
    workload = traffic_from_spec(spec, MODELS)
    assert np.bincount(workload.model) == pytest.approx([100_000, 200_000, 20_000], rel=0.2)


def test_scaled_divides_the_times():
    workload = traffic_from_spec(GAMMA | {"tokens": {"prompt": 8, "output": 4}}, MODELS)
    faster = workload.scaled(rate=2.0)
    assert np.array_equal(faster.arrival * 2, workload.arrival)
    assert faster.model is workload.model
    assert faster.prompt_tokens is workload.prompt_tokens
    for rate in (0, -1, math.nan, math.inf):
        with pytest.raises(TrafficError, match=r"^rate: "):
            workload.scaled(rate)


def test_tokens_for_one_model_leave_the_others_at_zero_and_the_arrivals_alone():
    tokens = {"b": {"prompt": {"mean": 100, "cv": 1, "min": 2, "max": 400}, "output": 7}}
    workload = traffic_from_spec(GAMMA | {"tokens": tokens}, MODELS)
    generating = workload.model == 1
    assert workload.output_tokens[generating].tolist() == [7] * int(generating.sum())
    assert workload.prompt_tokens[generating].min() >= 2
    assert workload.prompt_tokens[generating].max() <= 400
    assert np.unique(workload.prompt_tokens[generating]).size > 50
    assert not workload.prompt_tokens[~generating].any()
    assert np.array_equal(workload.arrival, traffic_from_spec(GAMMA, MODELS).arrival)


def write_trace(path, rows=3000):
    with gzip.open(path, "wt") as file:
        file.write("arrival_s,input_tokens,output_tokens\n")
        file.writelines(f"{0.1 * i:.4f},{100 + i},{i}\n" for i in range(rows))


def test_tokens_are_drawn_from_a_trace(tmp_path):
    write_trace(tmp_path / "t.csv.gz")
    workload = traffic_from_spec(GAMMA | {"tokens": {"trace": "t.csv.gz"}}, MODELS, tmp_path)
    assert np.array_equal(workload.prompt_tokens, workload.output_tokens + 100)
    assert np.unique(workload.output_tokens).size > 1000


def test_replay_of_a_trace_without_models(tmp_path):
    write_trace(tmp_path / "t.csv.gz")
    spec = {"kind": "replay", "trace": "t.csv.gz", "resample": False}
    alone = traffic_from_spec(spec, ["m"], tmp_path)
    assert np.allclose(alone.arrival, 0.1 * np.arange(3000), atol=1e-9)
    assert alone.output_tokens.tolist() == list(range(3000))
    dealt = traffic_from_spec(spec | {"split": {"power_law": 1}}, MODELS, tmp_path)
    assert np.array_equal(dealt.arrival, alone.arrival)
    assert np.array_equal(dealt.output_tokens, alone.output_tokens)
    assert np.bincount(dealt.model) == pytest.approx([1636, 818, 545], rel=0.12)
    part = traffic_from_spec(spec | {"start": 100, "duration": 50}, ["m"], tmp_path)
    assert part.output_tokens.tolist() == list(range(1000, 1500))
    faster = traffic_from_spec({"kind": "replay", "trace": "t.csv.gz", "rate_scale": 2}, ["m"], tmp_path)
    assert len(faster) == pytest.approx(6000, rel=0.02)
    assert np.array_equal(faster.prompt_tokens, faster.output_tokens + 100)
    assert np.array_equal(faster.output_tokens // 600, (faster.arrival // 60).astype(int))


def test_replay_of_one_trace_per_model(tmp_path):
    write_trace(tmp_path / "t.csv.gz", 100)
    np.savez(tmp_path / "w.npz", arrival=[0.05, 1.0], model=np.array([5, 0]))
    spec = {"kind": "replay", "trace": {"c": "t.csv.gz", "a": "w.npz"}, "resample": False}
    workload = traffic_from_spec(spec, MODELS, tmp_path)
    assert np.bincount(workload.model).tolist() == [2, 0, 100]
    assert workload.model[:3].tolist() == [2, 0, 2]
    assert times_of(workload, 0).tolist() == [0.05, 1.0]
    assert not workload.prompt_tokens[workload.model == 0].any()


def write_servegen(path):
    ones = np.ones((4, 3))
    rates = ones * np.array([[1], [2], [3], [4]])
    np.savez(path, client_id=[10, 11, 12, 13], window_start_s=[0, 600, 1200], rate=rates, cv=ones, dist=ones)


def test_replay_of_servegen_clients(tmp_path):
    write_servegen(tmp_path / "s.npz")
    spec = {"kind": "replay", "trace": "s.npz"}
    assert np.bincount(traffic_from_spec(spec, MODELS, tmp_path).model) == pytest.approx([1800, 3600, 5400], rel=0.1)
    chosen = spec | {
        "clients": {"a": 13, "c": 10},
        "start": 300,
        "duration": 600,
        "tokens": {"prompt": 3, "output": 2},
    }
    workload = traffic_from_spec(chosen, MODELS, tmp_path)
    assert np.bincount(workload.model) == pytest.approx([2400, 0, 600], rel=0.12)
    assert set(workload.prompt_tokens.tolist()) == {3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gama"}, "kind: 'gama' is unknown; give one of day_curve, gamma"),
        ({"kind": None}, "kind: None is unknown"),
        ({"kind": ["gamma"]}, "kind: ['gamma'] is unknown"),
        ({"sed": 1}, "sed: unknown key; known here: burstiness, cv"),
        ({"period": 5}, "period: unknown key"),
        ({"rates": {"d": 1}}, "rates.d: no such model; the models are a, b, c"),
        ({"rates": {"a": -1}}, "rates.a: -1 is out of range"),
        ({"rates": {"a": math.nan}}, "rates.a: nan is not finite"),
        ({"rates": {"a": "fast"}}, "rates.a: 'fast' is not a number"),
        ({"rates": 5}, "rates: 5 is not a mapping"),
        ({"rates": {5: 1}}, "rates: key 5 is not a string"),
        ({"rates": {"a": 1e6}, "duration": 1e6}, "rates x duration: about 1e+12 requests expected"),
        ({"total_rate": 3}, "rates, total_rate: give one of the two"),
        ({"split": "uniform"}, "split: shares out total_rate"),
        ({"burstiness": 1}, "cv, burstiness: both name"),
        ({"cv": 0}, "cv: 0.0 is out of range"),
        ({"cv": {"a": 1}}, "cv: nothing for model b"),
        ({"cv": {"a": 1, "b": 1, "c": 1, "d": 1}}, "cv.d: no such model"),
        ({"cv": {"a": 1, "b": 1, "c": math.inf}}, "cv.c: inf is not finite"),
        ({"duration": 0}, "duration: 0 is out of range"),
        ({"duration": "600s"}, "duration: '600s' is not a number"),
        ({"seed": -1}, "seed: -1 is out of range"),
        ({"seed": 2**32}, "seed: 4294967296 is out of range"),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number"),
        ({"tokens": {"d": {"prompt": 1, "output": 1}}}, "tokens.d: no such model"),
        ({"tokens": {"prompt": 1}}, "tokens: has prompt; give prompt and output"),
        ({"tokens": {"a": {}}}, "tokens.a: has nothing"),
        ({"tokens": {"a": 5}}, "tokens.a: 5 is not a mapping"),
        ({"tokens": {"prompt": {"cv": 1}, "output": 1}}, "tokens.prompt.mean: missing"),
        ({"tokens": {"prompt": {"mean": 1, "sd": 1}, "output": 1}}, "tokens.prompt.sd: unknown key"),
        (
            {"tokens": {"prompt": 1, "output": {"mean": 5, "min": 9, "max": 8}}},
            "tokens.output.max: 8 is out of",
        ),
        ({"tokens": {"trace": 5}}, "tokens.trace: 5 is not a path"),
        ({"tokens": {"trace": "none.csv"}}, "none.csv: no such file"),
    ],
)
def test_bad_descriptions_are_refused_in_one_line(change, message):
    assert message in refusal(GAMMA | change)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "gamma", "rates": {"a": 1}}, "duration: missing"),
        ({"kind": "gamma", "duration": 5}, "rates, total_rate: give one"),
        ({"kind": "poisson", "duration": 5, "rates": {"a": 1}, "cv": 1}, "cv: unknown key"),
        (
            {"kind": "gamma", "duration": 5, "rates": {"a": 1}, "burstiness": 0},
            "burstiness: 0.0 is out of range",
        ),
        ({"kind": "gamma", "duration": 5, "total_rate": 1, "split": "even"}, "split: 'even' is unknown"),
        (
            {"kind": "gamma", "duration": 5, "total_rate": 1, "split": {"power_law": -1}},
            "split.power_law: -1",
        ),
        ({"kind": "on_off", "duration": 5, "total_rate": 1}, "on_off: give mean_on and mean_off, or window"),
        ({"kind": "on_off", "duration": 5, "total_rate": 1, "mean_on": 1}, "mean_off: missing"),
        ({"kind": "on_off", "duration": 5, "total_rate": 1, "mean_on": 1, "window": 1}, "not both"),
        ({"kind": "on_off", "duration": 5, "total_rate": 1, "window": 1}, "p_on: missing"),
        (
            {"kind": "day_curve", "duration": 5, "total_rate": 1, "amplitude": 2},
            "amplitude: 2.0 is out of range",
        ),
        ({"kind": "replay"}, "trace: missing"),
        ({"kind": "replay", "trace": "none.npz"}, "none.npz: no such file"),
        ({"kind": "replay", "trace": {"d": "t.csv.gz"}}, "trace.d: no such model"),
        ({"kind": "replay", "trace": "t.csv.gz", "clients": {}}, "clients: unknown key"),
        (
            {"kind": "replay", "trace": "t.csv.gz", "start": 5000},
            "start: the trace has no request from there",
        ),
        ({"kind": "replay", "trace": "t.csv.gz", "resample": "no"}, "resample: 'no' is neither"),
        ({"kind": "replay", "trace": "t.csv.gz", "rate_scale": 1e6}, "rate_scale: about 3e+09 requests"),
        ({"kind": "replay", "trace": "t.csv.gz", "start": 299.9}, "duration: cannot be told"),
        ({"kind": "replay", "trace": "s.npz", "window": 5}, "window: unknown key"),
        ({"kind": "replay", "trace": "s.npz", "clients": {"a": 3}}, "client 3: not in the trace"),
        ({"kind": "replay", "trace": "s.npz", "duration": 1e5}, "the trace ends at 1800 s"),
        ({"kind": "replay", "trace": "w.npz"}, "model 5 does not exist"),
    ],
)
def test_each_kind_refuses_in_one_line(tmp_path, spec, message):
    write_trace(tmp_path / "t.csv.gz")
    write_servegen(tmp_path / "s.npz")
    np.savez(tmp_path / "w.npz", arrival=[0.5], model=np.array([5]))
    assert message in refusal(spec, base=tmp_path)


def test_models_must_be_named_once():
    assert refusal(GAMMA, []).startswith("models: none given")
    assert refusal(GAMMA, ["a", "b", "c", "b"]).startswith("models: b is there twice")
    assert refusal(5).startswith("workload: 5 is not a mapping")


def test_servegen_needs_a_client_for_each_model(tmp_path):
    write_servegen(tmp_path / "s.npz")
    message = refusal({"kind": "replay", "trace": "s.npz"}, [f"m{i}" for i in range(5)], tmp_path)
    assert message == "trace: has 4 clients for 5 models; give clients"


def test_numbers_may_come_from_numpy():
    spec = GAMMA | {"seed": np.int64(0), "duration": np.float32(300), "cv": np.int32(3)}
    assert np.array_equal(traffic_from_spec(spec, MODELS).arrival, traffic_from_spec(GAMMA, MODELS).arrival)


def test_a_workload_checks_itself():
    with pytest.raises(TrafficError, match=r"^arrival\[1\]: 1.0 comes after 2.0; give times in ascending order$"):
        Arrivals(np.array([2.0, 1.0]), np.zeros(2, dtype=np.int32))
    with pytest.raises(TrafficError, match=r"^model: int64"):
        Arrivals(np.array([1.0]), np.zeros(1, dtype=np.int64))
    with pytest.raises(TrafficError, match=r"^prompt_tokens, output_tokens: "):
        Arrivals(np.array([1.0]), np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32))
