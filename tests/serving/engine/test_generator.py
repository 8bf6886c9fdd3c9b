"""The engine with a real tiny model: what a sequence says does not depend on its company, and nothing is leaked."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.engine import Produced, make_generator
from serving.engine.step import GenerateResult
from serving.sampling import SamplingParams
from tests.serving.models.shapes import ThreadGroup
from tests.serving.models.tiny import VOCABULARY, save

BLOCKS = 24


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    torch.set_num_threads(1)
    return ThreadGroup(save("qwen3", tmp_path_factory.mktemp("models")), 1, 1, blocks=BLOCKS)


def run_all(group, engine, requests):
    """{request: {index: tokens}} of everything submitted at once."""
    found = {request: {} for request, _, _ in requests}
    for request, prompt, params in requests:
        engine.submit(request, prompt, params)
    while engine.has_work():
        for output in engine.complete(group.run(engine.begin())):
            found[output.request].setdefault(output.index, []).append(output.token)
    return found


def sampled(**options):
    return SamplingParams(temperature=0.9, seed=3, **{"max_tokens": 10, **options})


WISHES = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 20)},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 2.0]),
        "top_k": st.integers(0, 30),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "repetition_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=3),
        "stop_token_ids": st.tuples(st.integers(0, VOCABULARY - 1)),
        "logprobs": st.integers(0, 5),
        "n": st.integers(1, 3),
    },
)


@settings(max_examples=25, deadline=None)
@given(
    step_tokens=st.integers(1, 40),
    blocks=st.integers(8, BLOCKS),
    crowd=st.lists(
        st.tuples(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30), WISHES), min_size=1, max_size=6
    ),
)
def test_a_sequence_is_the_same_in_any_company(group, step_tokens, blocks, crowd):
    """Whatever else runs, in whatever chunks, with however many preemptions."""
    requests = [
        (f"r{index}", prompt, SamplingParams(**{"seed": index, **wishes}))
        for index, (prompt, wishes) in enumerate(crowd)
    ]
    together = run_all(group, group.engine(blocks=blocks, step_tokens=step_tokens, sequences=5), requests)
    for request in requests:
        alone = run_all(group, group.engine(blocks=BLOCKS), [request])
        assert together[request[0]] == alone[request[0]]


def test_preemption_happens_and_changes_nothing(group):
    requests = [(f"r{index}", [index + 1, 5, 7], sampled(max_tokens=60)) for index in range(5)]
    engine = group.engine(blocks=8)
    together = run_all(group, engine, requests)
    assert engine.scheduler.preemptions > 0
    roomy = group.engine(blocks=BLOCKS)
    assert together == run_all(group, roomy, requests)
    assert roomy.scheduler.preemptions < engine.scheduler.preemptions


def test_known_prefixes_are_not_computed_again(group):
    engine = group.engine()
    prompt = list(range(50))
    first = run_all(group, engine, [("a", prompt, sampled())])
    engine.submit("b", prompt, sampled())
    step = engine.begin()
    assert len(step.tokens) == 2  # 48 of 50 are in three full blocks
    (output,) = engine.complete(group.run(step))
    assert output.cached_prompt == 48
    rest = [output.token]
    while engine.has_work():
        rest += [output.token for output in engine.complete(group.run(engine.begin()))]
    assert rest == first["a"][0]


def test_what_ends_a_sequence(group):
    engine = group.engine()
    tokens = run_all(group, engine, [("a", [1, 2], sampled(max_tokens=8))])["a"][0]
    assert len(tokens) == 8
    stop = SamplingParams(temperature=0.9, seed=3, max_tokens=8, stop_token_ids=(tokens[2],))
    stopped = run_all(group, engine, [("a", [1, 2], stop)])["a"][0]
    assert stopped == tokens[: tokens.index(tokens[2]) + 1]
    longest = run_all(group, group.engine(blocks=2), [("a", [1, 2], sampled(max_tokens=100))])["a"][0]
    assert len(longest) == 30  # two blocks of 16, less the prompt


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], sampled(), "no tokens"),
        ([1] * 300, sampled(), "at most"),
        ([VOCABULARY], sampled(), "from 0 to 98"),
        ([1], SamplingParams(max_tokens=0), "max_tokens"),
    ],
)
def test_a_bad_request_is_refused_and_leaves_nothing(group, prompt, params, message):
    engine = group.engine()
    with pytest.raises(InputError, match=message):
        engine.submit("r", prompt, params)
    assert not engine.has_work()
    assert engine.is_closed("r")


def test_a_row_without_usable_probabilities_fails_alone():
    engine = make_generator("m", vocabulary=9, max_positions=64, eos_token_ids=(), blocks=8)
    for request in ("good", "bad"):
        engine.submit(request, [1, 2], SamplingParams(max_tokens=3))
    step = engine.begin()
    outputs = engine.complete(GenerateResult(step.number, "m", np.array([4, 0]), np.array([False, True])))
    assert [type(output).__name__ for output in outputs] == ["Produced", "Refused"]
    assert outputs[1].request == "bad"
    assert engine.is_closed("bad")
    assert engine.running == 1


def test_cancelled_in_flight_it_ends_when_the_step_returns(group):
    engine = group.engine()
    engine.submit("a", [1, 2, 3], sampled())
    step = engine.begin()
    assert [output.finish for output in engine.cancel("a")] == ["cancelled"]
    assert engine.running == 1
    assert engine.complete(group.run(step)) == []
    assert engine.running == 0
    assert engine.scheduler.pool.used == 0
    assert engine.cancel("a") == []


def fuzz(group, count, seed):
    """Random requests, cancelled at random, through few blocks; every one must end and every block come back."""
    random = np.random.default_rng(seed)
    engine = group.engine(blocks=BLOCKS, step_tokens=48, sequences=12)
    submitted, open_now, ended = 0, set(), 0
    while submitted < count or open_now:
        while submitted < count and len(open_now) < 20 and random.random() < 0.7:
            request = f"r{submitted}"
            submitted += 1
            prompt = random.integers(0, 4 if random.random() < 0.5 else VOCABULARY, random.integers(1, 60)).tolist()
            n = int(random.integers(1, 3))
            engine.submit(request, prompt, random_params(random, n))
            open_now.add(request)
        if open_now and random.random() < 0.1:
            gone = str(random.choice(sorted(open_now)))
            engine.cancel(gone)
            open_now.discard(gone)
            ended += 1
        step = engine.begin()
        if step is None:
            continue
        if open_now and random.random() < 0.05:
            gone = str(random.choice(sorted(open_now)))
            engine.cancel(gone)
            open_now.discard(gone)
            ended += 1
        for output in engine.complete(group.run(step)):
            assert isinstance(output, Produced)
            if engine.is_closed(output.request):
                ended += output.request in open_now
                open_now.discard(output.request)
    assert ended == count
    assert not engine.has_work()
    assert engine.scheduler.pool.used == 0
    assert engine.scheduler.pool.available == BLOCKS
    return engine.scheduler.preemptions


def random_params(random, n):
    wishes = {"max_tokens": int(random.integers(1, 40)), "n": n, "temperature": float(random.choice([0.0, 1.0]))}
    if random.random() < 0.3:
        wishes |= {"top_k": int(random.integers(0, 20)), "top_p": float(random.uniform(0.1, 1))}
    if random.random() < 0.2:
        wishes |= {"repetition_penalty": 1.3, "logprobs": 2}
    if random.random() < 0.2:
        wishes |= {"stop_token_ids": (int(random.integers(VOCABULARY)),)}
    return SamplingParams(**wishes)


def test_random_requests_leak_no_block(group):
    assert fuzz(group, 150, seed=1) > 0


@pytest.mark.long
def test_ten_thousand_random_requests_leak_no_block(group):
    assert fuzz(group, 10_000, seed=2) > 100
