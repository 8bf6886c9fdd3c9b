"""Which shapes the profile of a model on an engine of others has; the engine itself is made up."""

import asyncio
import json

from placement.costs.analytic import analytic_profile
from serving.config import read_serve_config
from serving.profiler import present
from serving.profiler import profile as module
from serving.profiler.profile import profile_models
from serving.profiler.results import MeasuredModel, MeasuredShape

NODE = {"devices": 2, "kind": "cpu", "memory": "1GiB"}
ENGINES = {
    "ours": "penstock",
    "started": {"kind": "openai", "command": "serve {port}"},
    "elsewhere": {"kind": "openai", "url": "http://far.example/v1"},
}


def as_analytic(job):
    sizes = job.config.sizes
    return MeasuredModel([MeasuredShape(entry) for entry in analytic_profile(sizes, "cpu", job.shapes, ()).shapes], 1.0)


async def measure_foreign(job, *rest):
    return as_analytic(job)


async def measure_models(crew, jobs, effort, tick):
    return [(found.shapes, found.seconds) for found in map(as_analytic, jobs)]


def shapes_of(result):
    return [
        {(shape.entry.tp, shape.entry.pp, shape.entry.span, shape.source) for shape in model.shapes}
        for model in result.models
    ]


def test_nothing_is_scaled_that_an_engine_of_others_cannot_have(models, monkeypatch):
    monkeypatch.setattr(present, "count_cores", lambda: 1)
    monkeypatch.setattr(present, "count_gpus", lambda: 0)
    monkeypatch.setattr(module, "measure_foreign", measure_foreign)
    monkeypatch.setattr(module, "measure_models", measure_models)
    config = {
        "cluster": {"nodes": [{"name": name} | NODE for name in ("a", "b")]},
        "models": [
            {"name": name, "path": "llama", "slo": {"ttft": 1, "tpot": 1}, "engine": engine}
            for name, engine in ENGINES.items()
        ],
    }
    (models / "engines.json").write_text(json.dumps(config))
    result = asyncio.run(profile_models(read_serve_config(models / "engines.json")))
    ours, started, elsewhere = shapes_of(result)
    assert {span for *_, span, _ in ours} == {None, "node", "cluster"}
    assert started == {shape for shape in ours if shape[2] != "cluster"}
    assert len(started) > 1
    assert elsewhere == {(1, 1, None, "measured")}
