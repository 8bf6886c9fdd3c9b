"""`penstock moe profile`: routes of a real small model, what is learned from them and judged, and what is written."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from moe.loads import read_loads
from moe.popularity import FILE_NAME, load_profile
from moe.profile import profile_routes
from placement.errors import InputError
from serving.cli import run
from serving.models.routes import RoutedDecoder
from tests.serving.models import tiny

WORDS = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small models that read the words w0, w1, ..."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("qwen3_moe", "llama"):
        backend = tokenizers.Tokenizer(WordLevel({f"w{n}": n for n in range(tiny.VOCABULARY)}, unk_token="w0"))
        backend.pre_tokenizer = Whitespace()
        backend.save(str(tiny.save(name, folder) / "tokenizer.json"))
    return folder


@pytest.fixture
def folder(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in chance.integers(0, WORDS, 40)) for _ in range(11)]
    (tmp_path / "prompts.txt").write_text("\n".join(lines) + "\n\n")
    return tmp_path


def test_routes_are_those_of_transformers(models):
    text = " ".join(f"w{n}" for n in range(50))
    model = RoutedDecoder(models / "qwen3_moe")
    assert (model.experts, model.layers) == (6, [1])
    with torch.no_grad():
        logits = tiny.reference("qwen3_moe")(torch.arange(50)[None], output_router_logits=True).router_logits
    found = model.routes(text)
    assert found.shape == (50, 1, 2)
    assert found[:, 0].tolist() == logits[0].topk(2).indices.tolist()
    assert model.routes("").shape[0] == 0


def test_it_says_what_it_learned_and_writes_it(models, folder, capsys):
    model = models / "qwen3_moe"
    outputs = ("--out", "kept.npz", "--loads", "loads.npz", "--report", "page.html", "--png", "page.png")
    assert run(["moe", "profile", str(model), "--prompts", "prompts.txt", *outputs, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert (found["prompts"], found["tokens"], found["experts"]) == (11, 440, 6)
    assert found["held_out"]["prompts"] == 2
    assert found["held_out"]["tokens"] == 80
    assert 0 < found["held_out"]["marginal"]["total_variation"] < 0.2  # of routes drawn alike
    [layer] = found["layers"]
    kept = load_profile(folder / "kept.npz")
    assert layer["layer"] == 1
    shares = kept.load()[0] / 2
    assert layer["top"][0][1] == pytest.approx(shares.max())
    assert layer["top"][0][0] == shares.argmax()
    assert kept.marginal.tokens == 440
    assert not (model / FILE_NAME).exists()
    page = (folder / "page.html").read_text()
    assert "heatmap" in page
    assert "How this was made" in page
    assert (folder / "page.png").read_bytes().startswith(b"\x89PNG")
    loads = read_loads(folder / "loads.npz")
    assert loads.load.sum() == 880
    assert loads.history is not None
    assert run(["moe", "replicate", "loads.npz", "--devices", "2", "--slots", "8", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["placement"]) == 1


def test_for_people_and_beside_the_model(models, folder, capsys):
    model = models / "qwen3_moe"
    (folder / "prompts.jsonl").write_text('"w1 w2 w3"\n{"prompt": "w4 w5"}\n{"text": "w6"}\n')
    assert run(["moe", "profile", str(model), "--prompts", "prompts.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "3 prompts, 6 tokens, 1 layers of 6 experts" in out
    assert "judged on 1 prompts, 1 tokens" in out
    assert load_profile(model / FILE_NAME).marginal.tokens == 6


class Chain:
    """Each token's expert follows from its expert in the layer before; the first is the prompt's length modulo 4."""

    experts, layers = 8, [0, 1, 2]

    def routes(self, text):
        first = int(text)
        return np.array([[[first], [(first + 3) % 8], [(3 * first) % 8]]] * 20)


def test_paths_foretell_what_the_mean_does_not():
    found = profile_routes(Chain(), [str(n % 4) for n in range(40)], "here")
    summary = found.summary()
    assert summary["layers"][0]["path"] is None
    assert summary["layers"][0]["never_chosen"] == 4
    assert summary["held_out"]["path"]["total_variation"] < 0.1
    assert summary["held_out"]["path"]["total_variation"] <= summary["held_out"]["marginal"]["total_variation"]
    assert found.history.sum(axis=0).tolist() == found.paths.marginal.choices.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MOE", "--prompts", "none.txt"], "none.txt: cannot be read"),
        (["MOE", "--prompts", "prompts.csv"], "prompts are .txt or .jsonl"),
        (["MOE", "--prompts", "empty.txt"], "no prompts in it"),
        (["MOE", "--prompts", "bad.jsonl"], "bad.jsonl: line 2: not JSON"),
        (["MOE", "--prompts", "number.jsonl"], "number.jsonl: line 1: expected a string"),
        (["MOE", "--prompts", "one.txt"], "at least two are needed"),
        (["nowhere", "--prompts", "prompts.txt"], "nowhere: no such directory"),
        (["LLAMA", "--prompts", "prompts.txt"], "has no layers with experts"),
        (["MOE", "--prompts", "prompts.txt", "--out", "no/where.npz"], "there is no folder"),
        (["MOE"], "--prompts"),
    ],
)
def test_one_line_for_what_is_wrong(models, folder, capsys, arguments, message):
    (folder / "empty.txt").write_text("\n \n")
    (folder / "one.txt").write_text("w1 w2\n")
    (folder / "bad.jsonl").write_text('"w1"\n{"prompt": \n')
    (folder / "number.jsonl").write_text("7\n")
    names = {"MOE": str(models / "qwen3_moe"), "LLAMA": str(models / "llama")}
    assert run(["moe", "profile", *(names.get(argument, argument) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_prompt_without_tokens_counts_for_nothing():
    class Empty(Chain):
        def routes(self, text):
            return super().routes(text)[: 0 if text == "0" else None]

    assert profile_routes(Empty(), ["0", "1", "2"], "here").prompts == 2
    with pytest.raises(InputError, match="1 prompts with tokens"):
        profile_routes(Empty(), ["0", "1"], "here")
