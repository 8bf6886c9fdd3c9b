"""Layers in compiled calls compute what the modules compute, to the last bit where one device has them all."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.sampling import SamplingParams
from tests.serving.models.shapes import ThreadGroup
from tests.serving.models.tiny import VOCABULARY, save


def run(group, compiled):
    """Logits of three prompts, prefilled in chunks that decoding ones join."""
    for runner in group._runners:
        assert runner._compiled is not None
        if not compiled:
            runner._compiled = None
    engine = group.engine(step_tokens=24)
    random = np.random.default_rng(0)
    for index, length in enumerate((5, 30, 9)):
        prompt = random.integers(0, VOCABULARY, length).tolist()
        engine.submit(str(index), prompt, SamplingParams(max_tokens=12, temperature=0.0))
    logits = []
    while engine.has_work():
        engine.complete(group.run(engine.begin()))
        logits.append(group.logits.clone())
    return torch.cat(logits)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"])
def test_the_same_bits_as_the_modules(name, precision, tmp_path):
    path = save(name, tmp_path)
    params = {"precision": precision}
    ours = run(ThreadGroup(path, 1, 1, **params), compiled=True)
    modules = run(ThreadGroup(path, 1, 1, **params), compiled=False)
    assert torch.equal(ours, modules)


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_split_layers(shape, name, tmp_path):
    path = save(name, tmp_path)
    ours = run(ThreadGroup(path, *shape), compiled=True)
    modules = run(ThreadGroup(path, *shape), compiled=False)
    torch.testing.assert_close(ours, modules, atol=1e-5, rtol=1e-5)


def test_tokens_whose_scores_are_equal_choose_as_the_modules_do(tmp_path):
    """The compiled gate leaves them to torch."""
    path = save("mixtral", tmp_path)
    (file,) = path.glob("*.safetensors")
    weights = load_file(file)
    routers = [name for name in weights if name.endswith("gate.weight")]
    assert routers
    save_file({name: weight * (name not in routers) for name, weight in weights.items()}, file)
    ours, modules = ThreadGroup(path, 1, 1), ThreadGroup(path, 1, 1)
    assert torch.equal(run(ours, compiled=True), run(modules, compiled=False))
    assert ours._runners[0].take_routes() == modules._runners[0].take_routes()


def test_routes_are_counted_as_the_modules_count_them(tmp_path):
    """What compiles before the first step is not counted."""
    counts = []
    for compiled in (True, False):
        group = ThreadGroup(save("mixtral", tmp_path), 1, 1)
        group._runners[0].warm()
        run(group, compiled)
        counts.append(group._runners[0].take_routes())
    assert counts[0] == counts[1]
    assert sorted(counts[0]) == [0, 1, 2]


def test_other_families_keep_their_modules(tmp_path):
    assert ThreadGroup(save("gpt2", tmp_path), 1, 1)._runners[0]._compiled is None
