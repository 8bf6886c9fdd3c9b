"""config.yaml: the whole of it, its defaults, and one line for each thing that is wrong."""

from __future__ import annotations

import pytest

from placement.errors import InputError
from serving.config import LimitsConfig, read_serve_config

WHOLE = """
version: 1
cluster: {nodes: [{name: local, devices: 2, kind: cpu, memory: 4GiB}]}
models:
  - name: chat
    path: models/chat
    slo: {ttft: 1s, tpot: 200ms}
    traffic: {rate: 2, cv: 3, prompt_tokens: 128, output_tokens: 64}
  - {name: embed, path: /models/embed, slo: 200ms, target: 75%, weight: 2, precision: int8, traffic: {rate: 5}}
listen: "[::1]:8000"
api_keys: keys.txt
limits: {body: 8MiB, prompt_tokens: 1000, queue: 10}
training: {policy: fifo, store: sqlite:///penstock.db, loans: {target: 97%, minimum: 1min}}
profiles: profiles.json
overhead: 5ms
"""
LEAST = """
cluster: {nodes: [{name: local, devices: 1, memory: 1GiB}]}
models: [{name: a, path: a, slo: 1s}]
"""


def read(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return read_serve_config(path)


def test_the_whole_file(tmp_path):
    config = read(tmp_path, WHOLE)
    chat, embed = config.models
    assert (chat.path, embed.path) == (str(tmp_path / "models/chat"), "/models/embed")
    assert (chat.goal.ttft, chat.goal.tpot, embed.goal.end_to_end) == (1.0, 0.2, 0.2)
    assert (chat.traffic.cv, chat.traffic.output_tokens, embed.traffic.prompt_tokens) == (3, 64, None)
    assert (embed.target, embed.weight, embed.precision) == (0.75, 2, "int8")
    assert config.address == ("::1", 8000)
    assert config.limits == LimitsConfig(body=8 * 2**20, prompt_tokens=1000, queue=10)
    assert config.training.store == f"sqlite:///{tmp_path}/penstock.db"
    assert (config.training.loans.target, config.training.loans.minimum) == (0.97, 60)
    assert (config.api_keys, config.profiles) == (str(tmp_path / "keys.txt"), str(tmp_path / "profiles.json"))
    assert config.overhead == 0.005


def test_what_may_be_left_out(tmp_path):
    config = read(tmp_path, LEAST)
    assert config.address == ("127.0.0.1", 8000)
    assert config.limits == LimitsConfig()
    assert (config.training, config.api_keys, config.profiles, config.workload) == (None, None, None, None)
    assert (config.models[0].target, config.models[0].precision, config.models[0].traffic) == (0.99, "fp32", None)
    assert config.cluster.nodes[0].kind == "any"


def test_a_database_elsewhere_is_left_as_it_is(tmp_path):
    store = "postgresql://user@host/penstock"
    config = read(tmp_path, WHOLE.replace("sqlite:///penstock.db", store))
    assert config.training.store == store


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slo: 200ms", "slo: 200km", r"models\[1\]: slo: expected a time"),
        ("slo: 200ms", "slo: {ttft: 1, x: 2}", r"models\[1\]: slo has \['ttft', 'x'\]"),
        ("slo: 200ms", "slo: {}", r"models\[1\]: slo has \[\]"),
        ("slo: 200ms", "slo: 0", r"models\[1\]: slo is 0"),
        ("name: embed", "name: chat", "two are named 'chat'"),
        ("name: embed", 'name: "a\\n"', "cannot be printed"),
        ("path: /models/embed, ", "", r"models\[1\]: .*missing required field `path`"),
        ("target: 75%", "target: 120%", r"models\[1\]: target is 1.2"),
        ("weight: 2", "weight: 0", r"models\[1\]: weight is 0"),
        ("precision: int8", "graphs: true, engine: vllm", r"models\[1\]: graphs are our own engine's"),
        ("precision: int8", "precision: fp8", r"models\[1\].precision: .*'fp8'"),
        ("rate: 5", "rate: -1", r"models\[1\].traffic: rate is -1"),
        ("rate: 5", "rate: .nan", r"models\[1\].traffic: rate is nan"),
        ("cv: 3", "cv: 0", r"models\[0\].traffic: cv is 0"),
        ("prompt_tokens: 128", "prompt_tokens: 0", r"models\[0\].traffic.prompt_tokens: Expected `int` >= 1"),
        ("rate: 5", "speed: 5", r"models\[1\].traffic: .*unknown field `speed`"),
        ("listen:", "lisen:", "unknown field `lisen`"),
        ('"[::1]:8000"', "localhost", "listen 'localhost': give host:port"),
        ('"[::1]:8000"', '"::1:8000"', "listen '::1:8000': give host:port"),
        ('"[::1]:8000"', "localhost:99999", "port '99999' is not a number"),
        ("queue: 10", "queue: 0", "limits.queue: Expected `int` >= 1"),
        ("8MiB", "0", "limits: body is 0"),
        ("target: 97%", "target: 0", "training.loans: target is 0"),
        ("sqlite:///", "mysql://", "training.store is 'mysql://penstock.db'; expected sqlite:///FILE"),
        ("devices: 2", "devices: 0", "cluster: the cluster has 0 devices"),
        ("4GiB", "4Gib", r"cluster.nodes\[0\].memory: expected an amount of memory"),
        ("version: 1", "version: 2", "version 2 is not known here"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path, old, new, message):
    assert old in WHOLE
    with pytest.raises(InputError, match=message) as refused:
        read(tmp_path, WHOLE.replace(old, new))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/config.yaml: ")


def test_no_models(tmp_path):
    with pytest.raises(InputError, match="models: Expected `array` of length >= 1"):
        read(tmp_path, LEAST.replace("[{name: a, path: a, slo: 1s}]", "[]"))
