"""`penstock load` as a process: text, JSON, page, search, replay, and one line for what is wrong."""

import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from reports import Page
from tests.loadgen.conftest import PENSTOCK, ROOT, penstock_load, run_here, serving, told


def test_json_is_one_object_with_the_figures(endpoint):
    got = told("--url", endpoint.url, "--rate", "60", "--duration", "1s", "--models", "embed", "--slo", "1s")
    assert got["requests"] == got["answered"] == len(endpoint.seen)
    assert got["attainment"] == 1.0
    assert got["goodput"] == got["drawn_rate"]
    assert set(got["latency"]) == {"count", "mean", "p50", "p90", "p95", "p99", "max"}
    assert got["asked"] == {"rate": 60.0, "cv": "1"}
    assert got["models"]["embed"]["requests"] == got["requests"]
    assert got["valid"] is (got["lag"]["p99"] <= 0.005)


def test_text_page_and_rows(endpoint, tmp_path):
    page, picture, rows = tmp_path / "load.html", tmp_path / "load.png", tmp_path / "rows.npz"
    run = penstock_load(
        "--url", endpoint.url, "--stages", "40:1:1s,80:3:1s", "--mix", "chat=1,embed=3", "--goodput", "ttft:500",
        "tpot:50", "--output-tokens", "4", "--report", str(page), "--png", str(picture), "--requests", str(rows),
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    for word in ("attainment", "goodput", "TTFT", "generator lag", "rate 40, cv 1", "rate 80, cv 3", "embed"):
        assert word in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = page.read_text()
    assert "How this was made" in html
    assert "Attainment by rate and cv" in html
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html.replace("\n", " ")[:20000])
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.S)[1].replace("<\\/", "</"))
    assert len(figures) == 4
    assert {len(figure["data"]) > 0 for figure in figures.values()} == {True}
    with np.load(rows) as written:
        assert written["due_s"].size == len(endpoint.seen)


def test_the_largest_rate_held_is_found():
    # One at a time, 20 ms each: 50 requests a second at the most.
    with serving(service_s=0.02, servers=1) as single:
        got = told("--url", single.url, "--models", "embed", "--find-max-rate", "--at", "80%", "--slo", "300ms",
                   "--rate", "40", "--duration", "0.5s")  # fmt: skip
    found = got["max_rate"]
    assert 20 < found["rate"] < 100
    assert any(not probe["held"] for probe in found["probes"])
    assert got["asked"]["rate"] == found["rate"]


def test_none_held_is_told_with_json_page_and_exit_1(tmp_path):
    page = tmp_path / "load.html"
    with serving(service_s=0.05) as slow:
        run = penstock_load("--url", slow.url, "--models", "embed", "--find-max-rate", "--slo", "1ms", "--rate", "80",
                            "--duration", "0.4s", "--json", "--report", str(page))  # fmt: skip
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)["max_rate"]
    assert found["rate"] is None
    assert found["probes"][-1]["rate"] == 25
    assert "none; not even 25/s, the least tried, was held" in page.read_text()


def test_an_interrupted_search_tells_what_it_found(endpoint):
    arguments = ["--url", endpoint.url, "--models", "embed", "--find-max-rate", "--at", "1%", "--slo", "1s"]
    arguments += ["--rate", "20", "--duration", "1s", "--json"]
    with subprocess.Popen(
        [*PENSTOCK, "load", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while len(endpoint.seen) < 70 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    found = json.loads(out)["max_rate"]
    assert found["limited_by"] == "interrupt"
    assert len(found["probes"]) >= 1


def test_a_search_shows_on_a_terminal_how_it_goes_beside_json(endpoint, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run_here("--url", endpoint.url, "--models", "embed", "--find-max-rate", "--slo", "1us", "--rate", "80",
             "--duration", "0.2s", "--json")  # fmt: skip
    shown = capsys.readouterr()
    assert json.loads(shown.out)["max_rate"]["rate"] is None
    assert "80/s: 0.00% within goals" in shown.err
    assert "sending" in shown.err


def test_a_trace_is_replayed(endpoint, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.1,5,2\n0.4,6,3\n0.5,7,2\n")
    got = told("--url", endpoint.url, "--trace", str(trace), "--duration", "1s", "--models", "chat")
    assert got["requests"] == 3
    assert [len(seen.body["prompt"]) for seen in endpoint.seen] == [5, 6, 7]
    assert [seen.body["max_tokens"] for seen in endpoint.seen] == [2, 3, 2]


def test_an_interrupt_ends_it_with_what_came_so_far(endpoint):
    arguments = ["--url", endpoint.url, "--rate", "50", "--duration", "30s", "--json"]
    with subprocess.Popen(
        [*PENSTOCK, "load", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not endpoint.seen and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    got = json.loads(out)
    assert 5 < got["requests"] < 200
    assert not got["valid"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "--rate: "),
        (["--rate", "nan"], "--rate: "),
        (["--cv", "-1"], "--cv: "),
        (["--models", "nope"], "model 'nope' is not served"),
        (["--trace", "nope.csv"], "--trace nope.csv: no such file"),
        (["--slo", "soon"], "--slo: "),
        (["--find-max-rate"], "--find-max-rate: "),
        (["--no-stream", "--slo", "chat=500ms/50ms"], "--slo: has a TPOT"),
        (["--no-stream", "--goodput", "tpot:50"], "--goodput: has a TPOT"),
        (["stray"], "'stray': "),
        (["--report", "nowhere/x.html"], "--report nowhere/x.html: "),
        (["--api-key", "wrong-key"], "wants a key"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, capsys):
    with serving(api_key="right-key") as guarded:
        key = [] if "--api-key" in arguments else ["--api-key", "right-key"]
        code = run_here("--url", guarded.url, "--duration", "1s", *key, *arguments)
    shown = capsys.readouterr()
    assert code == 2
    assert len(shown.err.splitlines()) == 1
    assert message in shown.err
    assert shown.out == ""
    assert not guarded.seen


def test_a_missing_trace_is_said_before_anybody_is_asked(capsys):
    assert run_here("--url", "http://127.0.0.1:1", "--trace", "nope.csv") == 2
    assert "--trace nope.csv: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "nothing listens there"),
        ("localhost:8000", "is not the URL"),
        ("http://x.invalid", "not known"),
    ],
)
def test_a_dead_or_wrong_url_is_one_line_and_exit_2(url, message, capsys):
    assert run_here("--url", url) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert message in shown.err


def test_something_else_than_an_endpoint_is_named():
    with serving() as running:
        run = penstock_load("--url", running.url + "/elsewhere")
    assert run.returncode == 2
    assert "HTTP 404" in run.stderr


def test_names_in_a_page_are_text():
    page = Page("<b>")
    page.heading("</script><script>alert(1)")
    page.table(["<i>"], [["&"]])
    page.figure({"data": [{"name": "</script>"}], "layout": {}})
    html = page.html()
    assert "<script>alert" not in html
    assert '"name":"</script>"' not in html
    assert "&lt;i&gt;" in html
