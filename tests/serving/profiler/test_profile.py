"""Measuring real, tiny models on processes of this machine, from the configuration to profiles.json."""

from __future__ import annotations

import asyncio
import json
import os
import time

import msgspec
import pytest

from placement.errors import InfeasibleError, InputError
from placement.files import read_document, write_json
from placement.problem import read_problem
from placement.profile import Shape
from serving.config import read_serve_config
from serving.profiler import present
from serving.profiler.cache import Cache, model_digest
from serving.profiler.crew import MeasuringFailed, start_crew
from serving.profiler.effort import Effort
from serving.profiler.messages import Follow, LoadStage
from serving.profiler.profile import profile_models, want
from serving.profiler.results import MeasuredModel
from serving.profiler.stage import plan_stage
from serving.worker.event_loop import run
from serving.worker.local_launcher import LocalLauncher

FEW = Effort(steps=6, held_out=3, least_rounds=2, most_rounds=2, budget_s=0.0, most_sequences=4, most_context=128)
CONFIG = {
    "cluster": {"nodes": [{"name": "local", "devices": 4, "kind": "cpu", "memory": "1GiB"}]},
    "models": [
        {"name": "chat", "path": "llama", "slo": {"ttft": "1s", "tpot": "200ms"}},
        {"name": "embed", "path": "bert", "slo": "200ms", "traffic": {"rate": 5, "prompt_tokens": 16}},
        {"name": "embed-too", "path": "bert", "slo": "1s", "traffic": {"rate": 1, "prompt_tokens": 16}},
    ],
}


class Counting(LocalLauncher):
    """Remembers what it started."""

    def __init__(self):
        super().__init__()
        self.handles = []

    async def start(self, spec):
        self.handles.append(await super().start(spec))
        return self.handles[-1]


def config_for(folder, name="config.yaml", **changes):
    path = folder / name
    path.write_text(json.dumps(CONFIG | changes))
    return read_serve_config(path)


def measure(config, cache=None, launcher=None, **options):
    return run(asyncio.wait_for(profile_models(config, effort=FEW, cache=cache, launcher=launcher, **options), 200))


@pytest.fixture(autouse=True, scope="module")
def two_cores():
    """Whatever this machine has: a second measuring process then shares the first one's core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(present, "count_cores", lambda: 2)
        patch.setattr(present, "count_gpus", lambda: 0)
        yield


@pytest.fixture(scope="module")
def measured(models, tmp_path_factory):
    """One run for several tests: the result, its launcher, its cache's folder and its progress."""
    launcher, shares = Counting(), []
    folder = tmp_path_factory.mktemp("cache") / "deeper"
    result = measure(config_for(models), Cache(folder), launcher, on_progress=lambda share, note: shares.append(share))
    return result, launcher, folder, shares


def test_every_shape_is_measured_or_scaled(measured):
    result, _, _, shares = measured
    assert [model.name for model in result.models] == ["chat", "embed", "embed-too"]
    for model in result.models:
        sources = {shape.entry.shape: shape.source for shape in model.shapes}
        assert {shape for shape, source in sources.items() if source == "measured"} == {(1, 1), (1, 2), (2, 1)}
        # Three layers, four heads, two kv heads, an ffn of 48.
        assert {shape for shape, source in sources.items() if source == "scaled"} == {(1, 3), (2, 2), (4, 1)}
        assert all(shape.entry.kind == "cpu" and shape.entry.span is None for shape in model.shapes)
    assert result.absent_kinds == []
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_generating_model_has_costs_and_their_error(measured, models):
    chat = measured[0].models[0]
    for shape in chat.shapes:
        stages = shape.entry.generation.stages
        assert not shape.entry.stage_latency
        assert len(stages) == shape.entry.pp
        assert all(1e-6 < stage.seconds(0, 1, 0, 10) < 1.0 for stage in stages)
        if shape.source == "measured":
            assert shape.error.steps == 3 * shape.entry.pp
            assert 0 < shape.error.mean < 2
        else:
            assert shape.error is None
    entries = {shape.entry.shape: shape.entry for shape in chat.shapes}
    # Keys and values of two heads of eight numbers of four bytes in three layers.
    assert entries[Shape(1, 1)].generation.kv_bytes_per_token == (2 * 3 * 2 * 8 * 4,)
    assert sum(entries[Shape(1, 2)].generation.kv_bytes_per_token) == 2 * 3 * 2 * 8 * 4
    assert entries[Shape(2, 1)].generation.kv_bytes_per_token == (3 * 2 * 8 * 4,)
    weights = (models / "llama" / "model.safetensors").stat().st_size
    assert weights * 0.9 < entries[Shape(1, 1)].memory < weights + 3_000_000


def test_a_one_pass_model_has_the_time_of_each_batch(measured):
    embed = measured[0].models[1]
    assert (embed.task, embed.input_tokens) == ("embed", 16)
    for shape in embed.shapes:
        assert shape.entry.generation is None
        assert sorted(shape.entry.stage_latency) == [1, 2, 4, 8, 16]
        assert all(len(stage_s) == shape.entry.pp for stage_s in shape.entry.stage_latency.values())
    assert measured[0].models[2].shapes == embed.shapes


def test_nothing_is_left_behind(measured):
    _, launcher, _, _ = measured
    assert len(launcher.handles) == 2
    for handle in launcher.handles:
        with pytest.raises(ProcessLookupError):
            os.kill(handle.pid, 0)


def test_what_was_measured_is_not_measured_again(measured, models):
    result, _, folder, _ = measured
    launcher = Counting()
    again = measure(config_for(models), Cache(folder), launcher)
    assert launcher.handles == []
    assert all(model.is_cached for model in again.models)
    assert [model.shapes for model in again.models] == [model.shapes for model in result.models]
    assert len(list(folder.iterdir())) == 2


def test_the_planner_reads_what_is_written(measured, tmp_path):
    result = measured[0]
    write_json(tmp_path / "profiles.json", result.profiles)
    workload = {"kind": "poisson", "duration": 10, "seed": 0, "rates": {"embed": 2.0}}
    problem = {
        "cluster": CONFIG["cluster"],
        "models": [{"name": "embed", "slo": 0.2}],
        "profiles": "profiles.json",
        "workload": workload,
    }
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    read = read_problem(tmp_path / "problem.json")
    assert read.models[0].profile == result.profiles["embed"]
    assert read_document(tmp_path / "profiles.json", dict)["chat"]["shapes"][0]["generation"]["stages"]


def test_another_model_machine_or_way_of_measuring_has_another_name(models, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((models / "llama" / name).read_bytes())
    digest = model_digest(tmp_path, effort=FEW, machine={"device": "a"})
    assert digest == model_digest(tmp_path, effort=FEW, machine={"device": "a"})
    assert digest != model_digest(tmp_path, effort=FEW, machine={"device": "b"})
    assert digest != model_digest(tmp_path, effort=msgspec.structs.replace(FEW, steps=7), machine={"device": "a"})
    os.utime(tmp_path / "model.safetensors", (1, 1))
    changed = model_digest(tmp_path, effort=FEW, machine={"device": "a"})
    assert changed != digest
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    assert model_digest(tmp_path, effort=FEW, machine={"device": "a"}) != changed


def test_a_damaged_cache_is_no_cache(tmp_path):
    (tmp_path / "x.json").write_text('{"version": 1, "shapes": [')
    assert Cache(tmp_path).find("x") is None
    (tmp_path / "x.json").write_text('{"version": 99, "shapes": [], "seconds": 1}')
    assert Cache(tmp_path).find("x") is None
    assert Cache(None).find("x") is None


def test_wrong_models_and_devices_are_named(models):
    def refused(message, **changes):
        with pytest.raises(InputError, match=message):
            measure(config_for(models, "wrong.yaml", **changes))

    def node(**changes):
        return {"nodes": [CONFIG["cluster"]["nodes"][0] | changes]}

    chat, embed, _ = CONFIG["models"]
    refused("no device of kind v100", cluster=node(kind="v100"))
    refused(r"models \(chat\): .*nowhere: no such directory", models=[chat | {"path": "nowhere"}])
    refused(r"models \(embed\): slo has \['ttft'\], but it answers in one pass", models=[embed | {"slo": {"ttft": 1}}])
    refused(r"models \(chat\): graphs need a CUDA device", models=[chat | {"graphs": True}])
    refused("profile 'p' is that of 'chat' too", models=[chat | {"profile": "p"}, embed | {"profile": "p"}])


def test_a_model_that_fits_nowhere_is_named(models, tmp_path):
    """As the cache has it from a run in which no stage found room."""
    small = {"nodes": [CONFIG["cluster"]["nodes"][0] | {"memory": 1000}]}
    config = config_for(models, "small.yaml", cluster=small, models=CONFIG["models"][:1])
    plan = plan_stage(LoadStage(config.models[0].path, "fp32", 1, 2, 1, 1000, 64), 0, "cpu")
    assert not plan.loaded.fits
    cache = Cache(tmp_path)
    wanted = want(config.models[0], present.find_present(config.cluster)[0], FEW)
    cache.keep(wanted.digest, MeasuredModel([], 1.0))
    with pytest.raises(InfeasibleError, match="no shape of up to 2 devices leaves room for it in 1000 bytes each"):
        measure(config, cache)


def test_processes_that_do_not_start_fail_or_die_are_told(models):
    async def not_started():
        async with start_crew(["cpu:0"], LocalLauncher(python="/bin/false")):
            pass

    with pytest.raises(MeasuringFailed, match="measurer/0: exit code 1"):
        run(asyncio.wait_for(not_started(), 60))

    (models / "empty").mkdir()
    (models / "empty" / "config.json").write_bytes((models / "llama" / "config.json").read_bytes())
    order = LoadStage(str(models / "empty"), "fp32", 1, 1, 0, 10**9, 64)

    async def killed():
        launcher = Counting()
        async with start_crew(["cpu:0"], launcher) as crew:
            measuring = crew.members[0]
            with pytest.raises(InputError, match=r"empty: no \*.safetensors"):
                await measuring.ask(order)
            with pytest.raises(MeasuringFailed, match="AssertionError"):
                await measuring.ask(Follow())
            os.kill(launcher.handles[0].pid, 9)
            began = time.monotonic()
            with pytest.raises(MeasuringFailed, match="SIGKILL"):
                await measuring.ask(order)
            assert time.monotonic() - began < 5

    run(asyncio.wait_for(killed(), 60))
