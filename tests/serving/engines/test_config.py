"""Engines as a configuration names them, the commands they become, and plans that cannot be."""

import msgspec
import pytest

from placement.errors import InputError
from placement.files import convert
from placement.plan import Group, Plan
from serving.config import ModelEntry
from serving.controller.foreign import check_foreign
from serving.engines.exchange import Place, parse_place
from serving.engines.launch import Launch
from serving.engines.vllm import resolved
from serving.worker.device import devices_environment
from serving.worker.foreign import EngineConfig, fill_in
from serving.worker.messages import Load, ModelSpec, Order

OWN = Place("localhost", 80, False, "/v1", socket="/own/vllm")
BASE = {"name": "m", "path": "m", "slo": {"ttft": 1, "tpot": 1}}


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sglang", "expected penstock, vllm"),
        ({"kind": "openai"}, "needs one of `url`"),
        ({"kind": "openai", "url": "127.0.0.1:80"}, "expected http://HOST:PORT/v1"),
        ({"kind": "openai", "command": "serve --port 1"}, r"\{port\} is missing"),
        ({"kind": "openai", "command": "serve {port} {gpus}"}, r"\{gpus\} means nothing"),
        ({"kind": "openai", "command": "serve '{port}"}, "No closing quotation"),
        ({"kind": "vllm", "url": "http://a/v1"}, "started by itself"),
        ({"kind": "openai", "command": "s {port}", "sleep": "/s"}, "come together"),
        ({"kind": "openai", "url": "http://a/v1", "start": 0}, "from 1 to 86400"),
    ],
)
def test_what_is_wrong_is_told(engine, words):
    with pytest.raises(InputError, match=words):
        convert(BASE | {"engine": engine}, ModelEntry, "config.yaml")


def test_an_engine_travels_to_its_leader_as_it_is():
    entry = convert(
        BASE | {"engine": {"kind": "openai", "url": "http://a/v1", "start": "2s"}}, ModelEntry, "config.yaml"
    )
    order = Load(1, ModelSpec(name="m", path="m", engine=entry.foreign))
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order)
    assert there.model.engine.start_s == 2.0


def test_a_value_is_never_split_into_words():
    assert fill_in("run '{path}' --port={port}", {"path": "a b; c", "port": "1"}) == ["run", "a b; c", "--port=1"]


def launch(engine, devices, tp=1, pp=1):
    spec = ModelSpec(name="m", path="/models/m", precision="bf16", kv_bytes=1000, engine=engine)
    return Launch(spec, resolved(engine), devices, tp, pp)


def test_vllm_is_started_with_the_groups_shape():
    engine = EngineConfig(kind="vllm", python="/opt/python", arguments=("--enforce-eager",))
    command, environment = launch(engine, ("cuda:2", "cuda:3"), tp=2).command(OWN)
    words = " ".join(command)
    assert words.startswith("/opt/python -m vllm")
    for part in ("--tensor-parallel-size 2", "--uds /own/vllm", "--kv-cache-memory-bytes 1000", "--enable-sleep-mode"):
        assert part in words
    assert words.endswith("--enforce-eager")
    assert "--port" not in words
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "OMP_NUM_THREADS" not in environment
    _, on_cpu = launch(engine, ("cpu:0", "cpu:1"), pp=2).command(OWN)
    assert on_cpu["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"


def test_any_server_is_told_its_devices():
    engine = EngineConfig(kind="openai", command="s {port} {devices} {tp} {pp} {name} {path} {kv_bytes}")
    command, _ = launch(engine, ("cuda:2", "cuda:3"), pp=2).command(parse_place("http://127.0.0.1:9/v1"))
    assert command == ["s", "9", "2,3", "1", "2", "m", "/models/m", "1000"]


def test_all_devices_of_a_group_are_seen_by_its_server():
    assert devices_environment(["cuda:1", "cuda:2"], {})["CUDA_VISIBLE_DEVICES"] == "1,2"
    seen = devices_environment(["cuda:0", "cuda:1"], {"CUDA_VISIBLE_DEVICES": "4,6"})
    assert seen["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert devices_environment(["cpu:0", "cpu:1"], {})["CUDA_VISIBLE_DEVICES"] == ""


def test_plans_that_mix_engines_in_a_group_are_refused():
    def plan(**group):
        return Plan((Group(("n/0",), 1, 1, **group),))

    check_foreign(plan(models=("a",), parked=("b",)), {"a", "b"})
    check_foreign(plan(models=("c", "d")), {"a", "b"})
    with pytest.raises(InputError, match="'c' runs on our engine and 'a' on another's"):
        check_foreign(plan(models=("a", "c")), {"a", "b"})
    with pytest.raises(InputError, match="one is awake at a time"):
        check_foreign(plan(models=("a", "b")), {"a", "b"})


def test_plans_that_set_an_engine_of_others_across_nodes_are_refused():
    def plan(model, *devices):
        return Plan((Group(devices, 1, len(devices), models=(model,)),))

    check_foreign(plan("a", "n/0", "n/1"), {"a"})
    check_foreign(plan("c", "n/0", "m/0"), {"a"})
    with pytest.raises(InputError, match=r"'a' runs on an engine of others.* devices of 'm' and 'n'"):
        check_foreign(plan("a", "n/0", "m/0"), {"a"})
