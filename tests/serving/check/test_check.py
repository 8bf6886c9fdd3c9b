"""penstock check on a CPU machine: what it finds, what it says, and the table of tiles."""

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch

from moe.kernels.tiles import Cut, architecture_of, keep_cut, read_table, trying, tuned
from serving.check import machine, service
from serving.check.__main__ import say
from serving.check.cli import page
from serving.check.errand import MARK, Errand, ErrandFailed, send
from serving.check.kernels import Case, check_all_kernels, error_of, judge
from serving.check.links import check_links
from serving.check.results import CheckReport, judged, skipped
from serving.check.run import run_check
from serving.check.shapes import check_shapes, difference, make_small_model
from serving.check.tune import Trial, answers, best_cut, check_tune, time_cuts
from serving.cli import run
from serving.engine.outputs import Produced
from serving.sampling import TokenLogprobs


def test_every_kernel_computes_what_its_twin_does():
    found = asyncio.run(check_all_kernels(["cpu:0"]))
    assert {one.status for one in found} == {"pass"}, found
    names = {one.what for one in found}
    assert {"triton attention decode", "triton attention prefill", "triton rope", "triton rms norm"} <= names
    assert {"triton norm and int8 product, 5 tokens", "triton int8 product, 20 tokens"} <= names
    assert {"triton expert sort", "triton expert combine", "triton expert product, int8"} <= names
    assert all(one.figures["to_torch"] > 0 for one in found if one.what.startswith("core attention"))


def test_two_ways_to_round_half_precision_are_both_right():
    """Values reach 20, where a step is 0.016; an error of 3% is found all the same, and any of whole numbers."""
    from moe import steps

    random, half = torch.Generator().manual_seed(1), torch.float16
    x, weight = torch.randn(64, 256, generator=random), torch.randn(4, 128, 256, generator=random) * 256**-0.5
    x, weight = 2 * x.to(half), weight.to(half)
    order = steps.sort_places(torch.rand(64, 4, generator=random).argsort(dim=1)[:, :2], 4)

    def product(dtype):
        how = {"activation": "silu", "gated": True}
        return steps.multiply(x.to(dtype), order.tokens, order.ends, weight.to(dtype), **how).to(half)

    def holds(run):
        return judge(Case("", run, lambda: product(half)), torch.device("cpu"), half, None)["holds"]

    assert (product(half) - product(torch.float32)).abs().max() > 1e-2
    assert holds(lambda: product(torch.float32))
    assert not holds(lambda: product(torch.float32) * 1.03)
    assert error_of(torch.tensor([500, 1000]), torch.tensor([501, 1000])) == 1


def test_links_are_timed():
    shared, gloo = asyncio.run(check_links(["cpu:0", "cpu:1"]))
    assert (shared.status, gloo.status) == ("pass", "pass")
    assert shared.figures["all_reduce_4KiB_us"] > 0
    assert [one.status for one in asyncio.run(check_links(["cpu:0"]))] == ["skip"]


def test_every_shape_says_what_one_core_says(tmp_path):
    make_small_model(tmp_path / "model")
    found = asyncio.run(check_shapes(tmp_path / "model", ["cpu:0", "cpu:1"]))
    *shapes, graphs = found
    assert len(shapes) == 4
    assert shapes[-1].what == "tp1 x pp1 on cpu:0, int8"
    assert {one.status for one in shapes} == {"pass"}, found
    assert graphs == skipped("engine", "decode graphs", "needs a CUDA device")


def test_answers_are_compared_up_to_where_they_part():
    def answer(*tokens):
        return [Produced("r", 0, token, logprobs=TokenLogprobs(logprob, [], [])) for token, logprob in tokens]

    same, parted = answer((1, -0.5), (2, -1.0)), answer((1, -0.5), (3, -1.25), (4, -9.0))
    assert difference([same], [same]) == (0.0, 2)
    assert difference([parted], [answer((1, -0.5), (2, -1.0), (4, -1.0))]) == (0.25, 1)


def test_a_part_that_breaks_is_told_and_leaves_the_others_alone(monkeypatch):
    def broken(devices):
        raise OSError("no such driver")

    monkeypatch.setattr("serving.check.run.check_links", broken)
    report = asyncio.run(run_check(("machine", "links")))
    assert [one.part for one in report.failed] == ["links"]
    assert "no such driver" in report.failed[0].note
    assert report.findings[0].status == "pass"


def test_every_shape_is_planned_and_what_was_found_stays_when_something_breaks(tmp_path, monkeypatch):
    plans = []

    @asynccontextmanager
    async def running(config, *options):
        yield "http://there"

    async def admin(url, path):
        return {"groups": [{"tp": 1, "pp": 1}]}

    async def broken(url):
        raise KeyError("attainment")

    def ask(url, path, body):
        plans.append(json.loads(body)["groups"])
        if len(plans) == 2:
            raise ValueError("no memory")

    for name, stub in (("_running", running), ("_admin", admin), ("_load", broken), ("ask_admin", ask)):
        monkeypatch.setattr(service, name, stub)
    monkeypatch.setattr(service, "_complete", lambda url, number: True)
    make_small_model(tmp_path / "model")
    found = asyncio.run(service.check_service(tmp_path, tmp_path / "model", ["cpu:0", "cpu:1"], "cpu"))
    assert [(one.what, one.status) for one in found] == [
        ("plan", "pass"),
        ("load test", "fail"),
        ("plan of tp1 x pp1", "pass"),
        ("plan of tp1 x pp2", "fail"),
        ("plan of tp2 x pp1", "pass"),
        ("loan and recall", "fail"),
    ]
    assert found[1].note == "KeyError: 'attainment'"
    assert [(len(one["devices"]), one["tp"], one["pp"]) for [one] in plans] == [(1, 1, 1), (2, 1, 2), (2, 2, 1)]


def test_of_many_cores_some_are_used():
    seen = {"gpus": [], "cores": 64, "processor": "EPYC", "memory_bytes": 2**30, "packages": {}}
    assert machine.devices_here(seen) == [f"cpu:{number}" for number in range(8)]
    assert machine.check_machine(seen)[0].note == "8 of the cores are used"
    assert machine.check_machine(seen | {"cores": 2})[0].note == ""


def test_the_command_writes_its_report(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert run(["check", "--only", "machine", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == json.loads(out.read_text())["findings"]
    assert run(["check", "--only", "wires"]) == 2
    assert "there are machine, links" in capsys.readouterr().err


def test_the_page_says_what_failed_and_where_it_ran():
    findings = [judged("links", "nccl", False, "no peer", GB_per_s=1.5), skipped("tune", "table", "no GPU here")]
    text = page(CheckReport(machine={"gpus": []}, findings=findings, seconds=1.0))
    assert "GB_per_s 1.5; no peer" in text
    assert "0 passed, 1 failed, 1 skipped" in text
    assert "nothing here tells anything of a GPU" in text


def test_the_fastest_tile_is_chosen_where_it_is_worth_it():
    shipped, faster, hardly, broken = Cut(1, 1, 1, 1), Cut(2, 1, 1, 1), Cut(3, 1, 1, 1), Cut(4, 1, 1, 1)
    times = {shipped: 1.0, faster: 0.5, hardly: 0.99}
    trials = [
        Trial("a", shipped, [hardly, broken, faster], times.__getitem__),
        Trial("b", shipped, [hardly], times.__getitem__),
    ]
    assert [best_cut(trial.shipped, time_cuts(trial)) for trial in trials] == [faster, shipped]


def test_what_is_shipped_may_not_run_and_the_rest_is_tried():
    shipped, slow, quick = Cut(1, 1, 1, 1), Cut(2, 1, 1, 1), Cut(3, 1, 1, 1)
    trials = [
        Trial("a", shipped, [slow], {}.__getitem__),
        Trial("b", shipped, [slow, quick], {slow: 2.0, quick: 1.0}.__getitem__),
        Trial("c", shipped, [slow], {shipped: 1.0, slow: 2.0}.__getitem__),
    ]
    found = list(answers(trials, "sm_90"))
    assert [(one["key"], one["cut"], one["is_better"]) for one in found] == [
        ("b", list(quick), True),
        ("c", list(shipped), False),
    ]


def test_what_was_found_before_a_gpu_fails_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))

    async def fail_later(errands, on_answer):
        assert errands[0].wait_s > 3600
        on_answer({"architecture": "sm_90", "key": "a", "cut": [2, 1, 1, 1, 0], "is_better": True})
        raise ErrandFailed("errand/0: killed by SIGKILL")

    monkeypatch.setattr("serving.check.tune.send", fail_later)
    [found] = asyncio.run(check_tune(["cuda:0"]))
    assert (found.status, found.figures["tried"], found.figures["changed"]) == ("fail", 1, 1)
    assert "SIGKILL; what was found until then is kept" in found.note
    assert read_table() == {"sm_90": {"a": Cut(2, 1, 1, 1)}}


def test_answers_are_said_as_they_come(capsys):
    def answers():
        yield 1
        assert capsys.readouterr().out == f"{MARK}1\n"
        yield 2

    say(answers())
    say([3])
    assert capsys.readouterr().out == f"{MARK}2\n{MARK}[3]\n"


def test_an_errand_has_its_own_time_and_every_answer_is_heard():
    heard = []
    with pytest.raises(ErrandFailed, match=r"not done within 0\.01 s"):
        asyncio.run(send([Errand(task="links", device="cpu:0", wait_s=0.01)]))
    assert asyncio.run(send([Errand(task="cpu_kernels", device="cpu:0")], heard.append)) == heard


def test_amds_compiler_is_given_no_bound_for_registers():
    from serving.check.trials import attention_cuts

    assert {cut.fourth for prefill in (True, False) for cut in attention_cuts(prefill, True)} == {0}
    assert {cut.fourth for cut in attention_cuts(True, False)} == {168, 255}


def test_an_architecture_is_not_a_products_name():
    """torch for CUDA gives the product's name where torch for HIP gives the architecture."""
    facts = SimpleNamespace(gcnArchName="NVIDIA H100 80GB HBM3", major=9, minor=0)
    assert architecture_of(facts, False) == "sm_90"
    assert architecture_of(SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-", major=9, minor=4), True) == "gfx942"


def test_the_drivers_version_is_in_the_report(tmp_path, monkeypatch):
    (tmp_path / "amdgpu").mkdir()
    (tmp_path / "amdgpu" / "version").write_text("6.10.5\n")
    monkeypatch.setattr(machine, "MODULES", tmp_path)
    driver = machine.look_at_machine()["driver"]
    assert (driver["amdgpu"], driver["nvidia"]) == ("6.10.5", None)


def test_the_bound_of_the_int8_kernel_is_where_its_steps_take_least():
    from serving.check.trials import bound_trial
    from serving.models.int8_product import MOST_KEY, MOST_TOKENS, cut_at

    for bound in (0, 16, MOST_TOKENS, 512):
        trial = bound_trial(lambda tokens, bound=bound: (2.0, 1.0) if tokens <= bound else (2.0, 3.0))
        assert trial.key == MOST_KEY
        assert best_cut(trial.shipped, time_cuts(trial)) == cut_at(bound)


def test_the_table_is_kept_by_architecture(tmp_path):
    path = tmp_path / "tiles.json"
    keep_cut("sm_90", "a", Cut(1, 2, 3, 4), path)
    keep_cut("gfx942", "b", Cut(5, 6, 7, 8, 9), path)
    assert read_table(path) == {"sm_90": {"a": Cut(1, 2, 3, 4)}, "gfx942": {"b": Cut(5, 6, 7, 8, 9)}}
    keep_cut("sm_90", "c", Cut(7, 7, 7, 7), path)
    keep_cut("sm_90", "a", None, path)
    assert read_table(path)["sm_90"] == {"c": Cut(7, 7, 7, 7)}
    path.write_text("{")
    assert read_table(path) == {}
    assert tuned("a") is None
    with trying("a", Cut(1, 2, 3, 4)):
        assert tuned("a") == Cut(1, 2, 3, 4)
        assert tuned("b") is None


@pytest.mark.long
def test_the_whole_check_passes(tmp_path, capsys):
    out = tmp_path / "found.json"
    code = run(["check", "--out", str(out)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    parts = {one["part"] for one in json.loads(out.read_text())["findings"]}
    assert parts == {"machine", "links", "kernels", "engine", "service"}
