"""penstock check on a CPU machine: what it finds, what it says, and the table of tiles."""

import asyncio
import json

import pytest

from moe.kernels.tiles import Cut, keep_cuts, read_table, trying, tuned
from serving.check.cli import page
from serving.check.kernels import check_all_kernels
from serving.check.links import check_links
from serving.check.results import CheckReport, judged, skipped
from serving.check.run import run_check
from serving.check.shapes import check_shapes, difference, make_small_model
from serving.check.tune import Trial, choose_cuts
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
    assert choose_cuts(trials) == {"a": faster}


def test_the_bound_of_the_int8_kernel_is_where_its_steps_take_least():
    from serving.check.trials import bound_trial
    from serving.models.int8_product import MOST_KEY, MOST_TOKENS, cut_at

    def joined_pays_up_to(bound):
        return bound_trial(lambda tokens: (2.0, 1.0) if tokens <= bound else (2.0, 3.0))

    assert choose_cuts([joined_pays_up_to(16)]) == {MOST_KEY: cut_at(16)}
    assert choose_cuts([joined_pays_up_to(512)]) == {MOST_KEY: cut_at(512)}
    assert choose_cuts([joined_pays_up_to(0)]) == {MOST_KEY: cut_at(0)}
    assert choose_cuts([joined_pays_up_to(MOST_TOKENS)]) == {}


def test_the_table_is_kept_by_architecture(tmp_path):
    path = tmp_path / "tiles.json"
    keep_cuts("sm_90", {"a": Cut(1, 2, 3, 4)}, path)
    keep_cuts("gfx942", {"b": Cut(5, 6, 7, 8, 9)}, path)
    assert read_table(path) == {"sm_90": {"a": Cut(1, 2, 3, 4)}, "gfx942": {"b": Cut(5, 6, 7, 8, 9)}}
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
