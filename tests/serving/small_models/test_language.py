"""Windows of text, what perplexity means, and routers watched from outside."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from serving.small_models.attend import causal
from serving.small_models.balance import RouterWatch, expert_loads, watch_routers
from serving.small_models.language import Windows, next_token_loss, perplexity, unigram_perplexity
from serving.small_models.training import Schedule
from tests.serving.small_models.test_files import ours


@pytest.fixture(scope="module")
def chat(made):
    return ours(made[0] / "chat")


@pytest.fixture(scope="module")
def moe(made):
    return ours(made[0] / "moe-chat")


@given(length=st.integers(20, 300), context=st.integers(1, 19), batch=st.integers(1, 7), seed=st.integers(0, 2**31 - 1))
def test_each_window_once_before_any_again(length, context, batch, seed):
    windows = Windows(torch.arange(length), context, batch, torch.Generator().manual_seed(seed))
    count = (length - 1) // context
    starts = []
    while len(starts) < 2 * count:
        inputs, targets = windows.next()
        assert inputs.shape == (batch, context)
        assert torch.equal(targets, inputs + 1)
        starts += inputs[:, 0].tolist()
    assert sorted(starts[:count]) == sorted(starts[count : 2 * count]) == [place * context for place in range(count)]


@pytest.mark.parametrize(("length", "context"), [(65, 16), (70, 16), (17, 16), (12, 16)])
def test_perplexity_is_what_it_says(chat, length, context):
    tokens = torch.arange(length) * 11 % 250
    losses = []
    for start in range(0, length - 1 - (length - 1) % min(context, length - 1), context):
        window = tokens[start : start + context + 1]
        with torch.inference_mode():
            logits = chat.logits(chat(window[:-1], torch.arange(len(window) - 1), causal(1)))
        losses += F.cross_entropy(logits, window[1:], reduction="none").tolist()
    assert perplexity(chat, tokens, context) == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_perplexity_takes_an_int8_model(made, chat):
    tokens = (torch.arange(200) * 11 % 250).tolist()
    small = ours(made[0] / "chat", precision="int8")
    assert perplexity(small, tokens, 32) == pytest.approx(perplexity(chat, tokens, 32), rel=0.05)


def test_unigram_perplexity_of_even_text_is_the_vocabulary():
    tokens = torch.arange(50).repeat(200)
    assert unigram_perplexity(tokens, tokens, 50) == pytest.approx(50)
    assert unigram_perplexity(tokens, tokens[:1], 5000) > 50


@given(
    scores=st.lists(st.lists(st.floats(-5, 5, width=32), min_size=6, max_size=6, unique=True), min_size=1, max_size=20),
    top_k=st.integers(1, 3),
)
def test_every_token_chooses_top_k(scores, top_k):
    watch = RouterWatch(top_k)
    watch.note(0, torch.tensor(scores))
    assert watch.counts().sum() == top_k * len(scores)
    assert watch.counts().max() <= len(scores)


def test_the_balance_loss_is_one_when_even_and_grows_to_the_experts():
    even, collapsed = RouterWatch(1), RouterWatch(1)
    even.note(0, 1e-3 * torch.eye(8).repeat(4, 1))
    collapsed.note(0, 50.0 * F.one_hot(torch.full((32,), 3), 8).float())
    assert even.balance_loss() == pytest.approx(1, abs=1e-3)
    assert collapsed.balance_loss() == pytest.approx(8, abs=1e-3)


def test_loads_are_shares_and_the_hooks_leave(moe):
    loads = expert_loads(moe, torch.arange(1000) * 13 % 250, 32)
    assert loads.shape == (2, 16)
    assert torch.allclose(loads.sum(dim=1), torch.ones(2))
    assert not any(module._forward_hooks for module in moe.modules())


def test_experts_learn(tiny):
    from serving.small_models.configs import language_config
    from serving.small_models.made import new_model

    model = new_model(language_config(tiny["moe-chat"], 300, (2,), 0), torch.Generator().manual_seed(0))
    inputs = torch.arange(256).view(8, 32)
    with watch_routers(model) as watch:
        (next_token_loss(model, inputs, inputs + 1) + watch.balance_loss()).backward()
        asked = watch.counts() > 0
    for layer, block in enumerate(model.layers):
        assert block.feedforward.router.weight.grad.abs().sum() > 0
        learns = block.feedforward.experts.up.grad.flatten(1).abs().sum(dim=1) > 0
        assert learns.tolist() == asked[layer].tolist()


@given(steps=st.integers(1, 500), peak=st.floats(1e-5, 1))
def test_the_rate_rises_to_its_peak_and_falls_towards_zero(steps, peak):
    schedule = Schedule(steps, peak)
    rates = [schedule.rate(step) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) <= peak * (1 + 1e-9)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert all(rate > 0 for rate in rates)
    assert steps < 20 or rates[-1] < 0.05 * peak
