"""Locust with our locustfile, as real processes: headless, master with workers, web form."""

import csv
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack

import pytest

from loadgen.demand import make_demand
from loadgen.target.models import TargetModel
from loadgen.traffic_options import TrafficOptions
from tests.loadgen.conftest import ROOT, misplaced_s, serving

LOCUST = [sys.executable, "-m", "locust", "-f", "loadgen/locustfile.py"]


def locust(*arguments, **more):
    return subprocess.run([*LOCUST, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90, **more)


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def figures(path):
    return json.loads(path.read_text())


def test_headless_sends_the_process_asked_for_and_keeps_the_statistics(tmp_path):
    summary = tmp_path / "summary.json"
    with serving(service_s=0.005, token_s=0.002, refuse_every=10) as endpoint:
        run = locust(
            "--host", endpoint.url, "--headless", "--only-summary", "--rate", "60", "--cv", "2", "--duration", "2s",
            "--mix", "chat=1,embed=2", "--slo", "chat=500ms/100ms,embed=500ms", "--output-tokens", "4",
            "--csv", str(tmp_path / "run"), "--summary", str(summary),
        )  # fmt: skip
    got = figures(summary)
    options = TrafficOptions(rate="60", cv="2", duration="2s", mix="chat=1,embed=2")
    demand = make_demand(options, [TargetModel("chat"), TargetModel("embed", "embed")])
    assert got["requests"] == len(demand) == len(endpoint.seen), run.stderr
    assert misplaced_s(endpoint, demand) < 0.03
    assert got["refusals"] == {"refused": len(demand) // 10}
    rows = {(row["Type"], row["Name"]): row for row in read_csv(tmp_path / "run_stats.csv")}
    counts = {name: got["models"][name]["requests"] for name in ("chat", "embed")}
    for name, count in counts.items():
        assert int(rows["POST", name]["Request Count"]) == count
        missed = round(count * (1 - got["models"][name]["attainment"]))
        assert int(rows["SLO", name]["Failure Count"]) == missed
    answered = got["models"]["chat"]["answered"]
    assert int(rows["TTFT", "chat"]["Request Count"]) == int(rows["TPOT", "chat"]["Request Count"]) == answered
    assert int(rows["ITL", "chat"]["Request Count"]) == 3 * answered
    assert int(rows["", "Aggregated"]["Request Count"]) == len(demand)
    failures = read_csv(tmp_path / "run_failures.csv")
    assert sum(int(row["Occurrences"]) for row in failures if "429 refused" in row["Error"]) == got["refused"]


def test_workers_share_one_process(tmp_path):
    summary = tmp_path / "summary.json"
    with serving(service_s=0.002, token_s=0.004) as endpoint:
        run = locust(
            "--host", endpoint.url, "--headless", "--only-summary", "--models", "chat", "--processes", "2",
            "--output-tokens", "3", "--stages", "50:1:1s,50:1:1s", "--summary", str(summary),
            "--csv", str(tmp_path / "run"),
        )  # fmt: skip
    got = figures(summary)
    demand = make_demand(TrafficOptions(stages="50:1:1s,50:1:1s"), [TargetModel("chat")])
    assert got["requests"] == len(demand) == len(endpoint.seen), run.stderr
    assert [stage["requests"] for stage in got["stages"]] == [int((demand.stage == at).sum()) for at in (0, 1)]
    # Together they send the one process: gap by gap, not only on average.
    assert misplaced_s(endpoint, demand) < 0.03
    steps = [row["Name"] for row in read_csv(tmp_path / "run_stats.csv") if row["Type"] == "STAGE"]
    assert steps == ["1: rate 50, cv 1", "2: rate 50, cv 1"]
    itl = got["models"]["chat"]["itl"]
    assert itl["count"] == 2 * len(demand)
    assert 0.002 < itl["mean"] < 0.05


def test_goodput_switches_and_the_key_come_from_line_and_environment(tmp_path):
    with serving(service_s=0.005, api_key="secret") as endpoint:
        run = locust(
            "--host", endpoint.url, "--headless", "--only-summary", "--models", "chat", "--rate", "40",
            "--duration", "1s", "--goodput", "ttft:1", "--no-ignore-eos", "--csv", str(tmp_path / "run"),
            env=os.environ | {"PENSTOCK_API_KEY": "secret", "PENSTOCK_LOAD_STREAM": "false"},
        )  # fmt: skip
    assert endpoint.seen, run.stderr
    assert not any("stream" in seen.body or "ignore_eos" in seen.body for seen in endpoint.seen)
    rows = {row["Type"]: row for row in read_csv(tmp_path / "run_stats.csv")}
    assert int(rows["SLO"]["Failure Count"]) == 0
    assert int(rows["GOODPUT"]["Failure Count"]) == len(endpoint.seen)


@pytest.mark.parametrize("has_trace", [True, False])
def test_master_and_worker_as_commands_of_their_own(tmp_path, endpoint, unused_tcp_port, has_trace):
    folders = [tmp_path / "master", tmp_path / "worker"]
    for folder, has in zip(folders, (True, has_trace), strict=True):
        folder.mkdir()
        if has:
            lines = [f"{at / 20},16,4" for at in range(20)]
            (folder / "trace.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    port, command = str(unused_tcp_port), [*LOCUST[:-1], str(ROOT / LOCUST[-1])]
    first = ["--master", "--master-bind-port", port, "--headless", "--only-summary", "--expect-workers", "1"]
    first += ["--host", endpoint.url, "--models", "embed", "--trace", "trace.csv", "--duration", "1s"]
    second = ["--worker", "--master-port", port]
    with ExitStack() as stack:
        pair = []
        for folder, arguments in zip(folders, (first, second), strict=True):
            one = subprocess.Popen([*command, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True)
            pair.append(stack.enter_context(one))
            stack.callback(one.kill)
        master, worker = pair
        told = master.communicate(timeout=60)[1]
        worker.communicate(timeout=60)
    troubles = [line for line in told.splitlines() if "cannot send its share" in line]
    assert (master.returncode == 2, len(troubles)) == ((False, 0) if has_trace else (True, 1)), told
    assert len(endpoint.seen) == (20 if has_trace else 0), told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "nope"], "model 'nope' is not served"),
        (["--stages", "5:x"], "--cv: "),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, endpoint):
    run = locust("--host", endpoint.url, "--headless", *arguments)
    assert run.returncode == 2
    ours = [line for line in run.stderr.splitlines() if not line.startswith("[")]
    assert len(ours) == 1
    assert ours[0].startswith("penstock: ")
    assert message in ours[0]


def test_a_run_that_cannot_start_exits_with_2(endpoint):
    """As when the server is gone between the first look and the start."""
    script = (
        "import sys, argparse, types\n"
        "from loadgen.swarm.conductor import Conductor\n"
        "options = argparse.Namespace(models='nope')\n"
        "world = types.SimpleNamespace(runner=None, host=sys.argv[1], parsed_options=options)\n"
        "conductor = Conductor(world)\n"
        "conductor.start()\n"
        "sys.exit(world.process_exit_code if conductor.is_over else 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, endpoint.url], cwd=ROOT, capture_output=True, timeout=60)
    assert run.returncode == 2
    assert b"'nope' is not served" in run.stderr


def test_the_environment_and_the_web_form_give_options_too(endpoint, unused_tcp_port):
    page = f"http://127.0.0.1:{unused_tcp_port}"
    command = [*LOCUST, "--host", endpoint.url, "--web-host", "127.0.0.1", "--web-port", str(unused_tcp_port)]
    environment = {"PENSTOCK_LOAD_MODELS": "embed", "PENSTOCK_LOAD_SLO": "1s", "PATH": "", "HOME": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(lambda: b"Goals" in _get(page + "/"))
            wrong = json.loads(_post(page + "/swarm", host=endpoint.url, rate="zero"))
            assert wrong["success"] is False
            assert wrong["message"].startswith("--rate: ")
            more = {"stages": "40:1:1s,40:1:1s", "goodput": "e2el:1000", "stream": "false"}
            assert json.loads(_post(page + "/swarm", host=endpoint.url, **more))["success"]
            _wait_for(lambda: json.loads(_get(page + "/stats/requests"))["state"] == "stopped")
            told = json.loads(_get(page + "/stats/requests"))
        finally:
            process.terminate()
            process.communicate(timeout=20)
    model, *stages = told["extended_stats"][0]["data"]
    assert model["model"] == "embed"
    assert int(model["requests"]) == len(endpoint.seen) > 40
    assert model["attainment"] == "100.00%"
    assert [row["model"] for row in stages] == ["1: rate 40, cv 1", "2: rate 40, cv 1"]
    for row in stages:
        assert float(row["goodput"]) == int(row["requests"])  # in a second each
    assert float(model["goodput"]) == int(model["requests"]) / 2


@pytest.fixture
def unused_tcp_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read()


def _post(url, **form):
    with urllib.request.urlopen(url, urllib.parse.urlencode(form).encode(), timeout=10) as answer:
        return answer.read()


def _wait_for(condition):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("it did not come")
