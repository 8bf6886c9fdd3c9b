"""Experts change places on a real group while it serves: no request fails, no answer changes, and little is read."""

import asyncio

import pytest

from moe.counter import MOST_STEPS, STEP_TOKENS
from placement.errors import InputError
from serving.worker.event_loop import run
from serving.worker.leader import differing_experts
from tests.serving.worker.test_group import PROMPTS, check_texts, collect, models, running, spec, texts

__all__ = ["models"]

LAYERS = 3
SPREAD = [[[0, 3], [1, 2]]] * LAYERS
REPLICATED = [[[0, 3, 1], [1, 2, 0]]] * LAYERS
CROWDED = [[[0, 1, 2, 3], []]] * LAYERS


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_experts_move_under_a_stream_of_requests(models, precision):
    async def scenario():
        async with running(tp=2) as group:
            await group.load(spec(models, "mixtral", precision=precision))
            before = await texts(group, "mixtral")
            served = []
            moving = True

            async def stream():
                while moving or len(served) < 2:
                    served.append(await texts_of(group, len(served)))

            streaming = asyncio.create_task(stream())
            read = [(await group.place_experts("mixtral", places))["read"] for places in (SPREAD, REPLICATED, CROWDED)]
            moving = False
            await streaming
            return before, served, await texts(group, "mixtral"), read

    before, served, after, read = run(asyncio.wait_for(scenario(), 120))
    # All experts were slices at first; then each device gets one expert more; then the first lacks one.
    assert read == [LAYERS * 4, LAYERS * 2, LAYERS * 1]
    if precision == "fp32":
        for tokens in (before, *served, after):
            check_texts("mixtral", tokens)
    else:
        assert all(len(one) == 24 for tokens in served for one in tokens)


async def texts_of(group, number):
    asked = (collect(group, "mixtral", f"{number}-{request}", prompt) for request, prompt in PROMPTS.items())
    return [[output.token for output in outputs] for outputs in await asyncio.gather(*asked)]


def test_a_model_may_come_with_its_experts_placed_and_wrong_places_change_nothing(models):
    async def scenario():
        async with running(tp=2, pp=2) as group:
            await group.load(spec(models, "mixtral", experts=REPLICATED))
            await group.load(spec(models, "llama"))
            with pytest.raises(InputError, match="2 layers with experts, where there are 3"):
                await group.place_experts("mixtral", SPREAD[:2])
            with pytest.raises(InputError, match="lives nowhere"):
                await group.place_experts("mixtral", [[[0, 3], [1]]] * LAYERS)
            with pytest.raises(InputError, match="not on group"):
                await group.place_experts("nobody", SPREAD)
            with pytest.raises(InputError, match="experts"):
                await group.place_experts("llama", SPREAD)
            first, second = await asyncio.gather(
                group.place_experts("mixtral", SPREAD), group.place_experts("mixtral", SPREAD), return_exceptions=True
            )
            await group.take_routes("mixtral")
            assert first == {"read": 0}
            assert "already" in str(second)
            found = await texts(group, "mixtral")
            counts, nothing = [(await group.take_routes("mixtral")).all for _ in range(2)]
            assert (await group.take_routes("llama")).all == []
            return found, counts, nothing

    found, counts, nothing = run(asyncio.wait_for(scenario(), 120))
    check_texts("mixtral", found)
    # Two experts for each token but the last of each answer, which nobody asks.
    tokens = sum(len(prompt) + 23 for prompt in PROMPTS.values())
    assert [sum(layer) for layer in counts] == [2 * tokens] * LAYERS
    assert all(len(layer) == 4 for layer in counts)
    assert nothing == [[0] * 4] * LAYERS


def test_large_steps_are_counted_one_by_one(models):
    """Prompts that come together share steps; the stages of a pipeline tell the same of them."""
    prompts = {f"p{index}": [(3 * index + 7 * place) % 99 for place in range(120)] for index in range(12)}

    async def scenario():
        async with running(tp=2, pp=2) as group:
            await group.load(spec(models, "mixtral", experts=REPLICATED))
            await asyncio.gather(*(collect(group, "mixtral", request, prompt) for request, prompt in prompts.items()))
            return await group.take_routes("mixtral"), await group.take_routes("mixtral")

    counts, nothing = run(asyncio.wait_for(scenario(), 120))
    sizes = [[sum(step) for step in layer] for layer in counts.steps]
    assert sizes == [sizes[0]] * LAYERS
    assert 0 < len(sizes[0]) <= MOST_STEPS
    assert min(sizes[0]) >= 2 * STEP_TOKENS
    assert all(sum(map(sum, layer)) <= sum(whole) for layer, whole in zip(counts.steps, counts.all, strict=True))
    assert nothing.steps == [[]] * LAYERS


def test_devices_that_have_read_an_expert_differently_are_found():
    facts = [{"digests": [[0, 1, 5], [0, 2, 6]]}, {}, {"digests": [[0, 2, 7], [1, 1, 8]]}]
    assert "layer 0: expert 2 is not the same" in differing_experts(facts)
    assert not differing_experts(facts[:2])
