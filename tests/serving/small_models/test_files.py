"""What is written, transformers and our own loader read alike: the same weights, the same answers."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, BertForSequenceClassification, BertModel

from serving.models.config import read_config
from serving.models.load import load_shard
from serving.models.shard import make_shard
from serving.small_models.attend import causal
from serving.small_models.random import make_random
from serving.small_models.sentences import all_answers

SEQUENCES = [[0, 17, 301, 44, 1], [0, 9, 1], [0, *range(100, 120), 1]]


def ours(directory, precision="fp32"):
    config = read_config(directory)
    return load_shard(directory, config, make_shard(config.sizes, 1, 1, 0), precision=precision)


def theirs(kind, directory):
    """The model, and the assurance that each tensor of the file has its place and each place a tensor."""
    model, info = kind.from_pretrained(directory, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def check_logits(directory):
    model, tokens = theirs(AutoModelForCausalLM, directory), torch.arange(40) * 7 % 250
    with torch.inference_mode():
        expected = model(tokens[None]).logits[0]
        own = ours(directory)
        found = own.logits(own(tokens, torch.arange(40), causal(1)))
    assert torch.allclose(found, expected, atol=1e-4)
    assert expected.std() > 1e-3


@pytest.mark.parametrize("name", ["chat", "moe-chat"])
def test_language_models_answer_alike(made, name):
    check_logits(made[0] / name)


def test_transformers_generates_with_the_files(made):
    model = theirs(AutoModelForCausalLM, made[0] / "chat")
    assert model.generation_config.eos_token_id == [2, 0]
    torch.manual_seed(0)
    tokens = model.generate(torch.tensor([[1, 50, 60]]), max_new_tokens=8)
    assert tokens.shape[1] <= 11


@pytest.mark.parametrize("name", ["embed", "classify"])
def test_encoders_answer_alike(made, name):
    directory = made[0] / name
    model = theirs(BertModel if name == "embed" else BertForSequenceClassification, directory)
    found = all_answers(ours(directory), SEQUENCES)
    with torch.inference_mode():
        for ids, answer in zip(SEQUENCES, found, strict=True):
            output = model(torch.tensor([ids]))
            if name == "embed":
                expected = torch.nn.functional.normalize(output.last_hidden_state[0].mean(dim=0), dim=0)
            else:
                expected = output.logits[0]
            assert torch.allclose(answer, expected, atol=1e-4)


def test_the_classifier_names_its_labels(made):
    assert read_config(made[0] / "classify").labels == ("code", "prose")
    assert theirs(BertForSequenceClassification, made[0] / "classify").config.id2label == {0: "code", 1: "prose"}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_random_models_answer_alike(tmp_path, experts, tied):
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "vocabulary": 300}
    count = make_random(tmp_path / "m", **sizes, experts=experts, tied=tied)
    check_logits(tmp_path / "m")
    assert count == theirs(AutoModelForCausalLM, tmp_path / "m").num_parameters()
    assert json.loads((tmp_path / "m" / "config.json").read_bytes())["tie_word_embeddings"] is tied


def test_the_seed_makes_the_random_model(tmp_path):
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "ffn": 16, "vocabulary": 260}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_random(tmp_path / name, **sizes, seed=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    make_random(tmp_path / "a", **sizes, seed=1)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == c
