"""The dashboard in a real browser, over a real server."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from benchmarks.harness.browser import browser, why_no_browser
from benchmarks.harness.dashboard_world import pool_plan, pool_world
from benchmarks.harness.server import write_config as write_server_config
from benchmarks.harness.server import write_plan as write_groups
from placement.capacity import Rung, with_rungs
from placement.cli.admin import ask_admin
from placement.files import write_json
from placement.plan import Group, Plan, write_plan
from serving.cli import run
from tests.e2e.server import CACHE_BYTES, Server, profiles, write_config
from training.queue import open_store
from training.queue.submission import Submission

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser())
AXE = "axe-core@4.10.3"


@pytest.fixture(scope="module")
def page():
    with browser() as one:
        yield one


@pytest.fixture
def fresh(page):
    """A page that has nothing of the test before."""
    page.open("about:blank")
    page.resize(1280, 900)
    page.prefer("light")
    page.complaints()
    page.requests()
    return page


def pool(folder, devices, models, **more):
    world = pool_world(folder, devices, models, **more)
    world.write_plan("run", pool_plan(devices, models))
    return world.write("run")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two devices with two models."""
    with Server(pool(tmp_path_factory.mktemp("small"), 2, 2)) as server:
        yield server


def look(page, url):
    page.open(url)
    page.wait(lambda: page.texts("#models-table tbody tr"), what="no table of models")


def ask(server, model, count=1, **headers):
    body = {"model": model, "input": "a list"}
    with ThreadPoolExecutor(8) as many:
        return [
            status for status, _, _ in many.map(lambda _: server.ask("/v1/embeddings", body, **headers), range(count))
        ]


def figure(server, name, model):
    """The sum of a model's values in /metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    mine = [line for line in lines if line.startswith(f"penstock:{name}{{") and f'model_name="{model}"' in line]
    return sum(float(line.split()[-1]) for line in mine)


def shown_counts(page):
    """(requests, in time, judged, not served) of the chosen model."""
    text = page.text("#model-facts")
    found = re.search(r"(\d+) requests so far, (\d+) of (\d+) in time, (\d+) not served", text)
    return tuple(map(int, found.groups())) if found else None


def test_the_page_shows_what_metrics_say(small, fresh):
    look(fresh, small.url)
    assert fresh.texts("#device-names li") == ["local/0g0", "local/1g1"]
    assert ask(small, "small-0", 12) == [200] * 12
    refused = ask(small, "small-0", 3, **{"x-slo-ms": "20"})
    assert set(refused) == {429}

    def is_true():
        met, judged = figure(small, "slo_met_total", "small-0"), figure(small, "slo_requests_total", "small-0")
        unserved = figure(small, "request_refusals_total", "small-0")
        return shown_counts(fresh) == (15, met, judged, unserved)

    fresh.wait(is_true, 8, f"the page shows {shown_counts(fresh)}")
    attainment = figure(small, "attainment", "small-0")
    row = "#models-table tbody tr:first-child"
    assert fresh.text(f"{row} td").startswith(f"{math.floor(attainment * 1000) / 10:.1f}%")
    assert "3 refused" in fresh.text(row)
    fresh.wait(lambda: "small-0 misses its goal" in fresh.text("#troubles"), 10, "no trouble is told")
    assert "cannot answer within" in fresh.text("#troubles")
    fresh.click("#model-refusals")
    fresh.wait(lambda: len(fresh.texts("#dialog tbody tr")) == 3, 10, "the three refusals are not told")
    fresh.resize(390, 844)
    fresh.wait(lambda: fresh.run("document.documentElement.scrollWidth") == 390, 5, "it is wider than a phone")
    assert fresh.complaints() == []
    assert {url.split("/")[2] for url in fresh.requests()} == {small.url.split("/")[2]}


@pytest.mark.long
def test_a_loan_and_a_recall_are_followed(tiny_models, tmp_path, fresh):
    (tmp_path / "text.txt").write_text("It is what it is, and it was what it was.\n" * 400)
    training = {"store": "sqlite:///queue.db", "data": ["text.txt"], "loans": {"minimum": "2s"}}
    config = write_config(tmp_path, tiny_models, training=training)
    groups = tuple(Group((f"local/{n}",), 1, 1, ("chat", "embed"), {"chat": CACHE_BYTES}) for n in range(2))
    write_plan(tmp_path / "plan.json", with_rungs(Plan(groups, ((1,),)), (Rung((), 100.0), Rung((1,), 0.2))))
    store = open_store(f"sqlite:///{tmp_path}/queue.db")
    lm = {"model": str(tiny_models / "chat"), "data": str(tmp_path / "text.txt"), "steps": 5000, "context": 32}
    store.submit([Submission(id="lesson", type="lm", max_gpus=2, lm=lm | {"batch": 4, "pace": 0.05})], "me")
    store.close()
    with Server(config) as server:
        look(fresh, server.url)
        device = "#device-names li:nth-child(2)"
        fresh.wait(lambda: fresh.text(device) == "local/1lesson, of g1", 60, "the loan is not shown")
        fresh.wait(
            lambda: (
                "step" in fresh.text("#jobs-table tbody") and fresh.run("!document.getElementById('job-detail').hidden")
            )
        )
        ask(server, "embed", 40)
        fresh.wait(lambda: fresh.text(device) == "local/1g1", 20, "the recall is not shown")
        titles = fresh.texts("#happened li button")
        assert {"g1 lent", "g1 back", "Decided to lend", "Decided to take back"} <= set(titles)
        fresh.run(
            "[...document.querySelectorAll('#happened button')].find(b => b.textContent == arguments[0]).click()",
            "Decided to take back",
        )
        fresh.wait(lambda: "demand is" in fresh.text("#dialog"), 10, "the decision is not explained")
        assert "can be lent" in fresh.text("#dialog")
        assert fresh.complaints() == []
        # A group that dies is dead on the page, and back when it serves again.
        fresh.click("#dialog-close")
        fresh.wait(lambda: fresh.text(device) == "local/1lesson, of g1", 60)
        os.kill(server.status()["groups"][0]["pids"][0], signal.SIGKILL)
        fresh.wait(lambda: "g0 lost" in fresh.texts("#happened li button"), 20)
        fresh.wait(lambda: fresh.text("#device-names li") == "local/0g0", 60)


@pytest.mark.long
def test_a_suggested_plan_is_applied_and_a_restart_survived(tmp_path, fresh, monkeypatch, capsys):
    replan = {"every": "3600s", "window": "3600s", "requests": 100, "budget": "2s"}
    world = pool_world(tmp_path, 2, 2, replan=replan)
    apart = Plan((Group(("local/0",), 1, 1, ("small-0",)), Group(("local/1",), 1, 1, ("large-0",))))
    world.write_plan("run", apart)
    config = world.write("run")
    with Server(config) as server:
        # More than one device can do in time, and less than two can.
        run(["load", "--url", server.url, "--rate", "16", "--duration", "12s", "--models", "small-0", "--seed", "1"])
        capsys.readouterr()
        assert run(["dashboard", "--url", server.url]) == 0
        link = capsys.readouterr().out.strip()
        look(fresh, server.url)
        fresh.click("#ask-planner")
        fresh.wait(lambda: "admin key" in fresh.text("#dialog-title").lower(), what="no key was asked for")
        look(fresh, link)
        fresh.wait(lambda: "key" not in fresh.run("location.href"))
        fresh.wait(lambda: fresh.text("#connection") == "live")
        fresh.click("#ask-planner")
        fresh.wait(lambda: "The planner says" in fresh.text("#planner-result"), 240, "the planner did not answer")
        fresh.wait(lambda: fresh.run("!document.getElementById('apply').hidden"), 5, "no button to apply it")
        assert "small-0" in fresh.text("#suggestion")
        fresh.click("#apply")
        fresh.click("#dialog-act")
        fresh.wait(lambda: "in force" in fresh.text("#planner-result"), 60, "the plan was not applied")
        assert any("small-0" in group["models"] for group in ask_admin(server.url, "/admin/plan")["groups"][1:])
        fresh.wait(lambda: "Plan replaced" in fresh.texts("#happened li button"))
        port = server.url.rpartition(":")[2]
    assert fresh.text("#connection") != "live"
    text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}")
    config.write_text(text)
    with Server(config):
        fresh.wait(lambda: fresh.text("#connection") == "live", 30, "it did not reconnect")
        fresh.wait(lambda: fresh.texts("#happened li button").count("Plan started") == 1)
        assert len(fresh.texts("#models-table tbody tr")) == 2


@pytest.mark.long
def test_experts_and_their_replicas_are_a_heat_map(tiny_models, tmp_path, fresh):
    write_json(tmp_path / "profiles.json", {"moe": profiles()["chat"]})
    places = [[[*range(9)], [*range(8, 16)]]] * 2  # expert 8 has two replicas in both layers
    (tmp_path / "places.json").write_text(json.dumps({"placement": places}))
    group = {"devices": ["local/0", "local/1"], "tp": 2, "pp": 1, "models": ["moe"], "kv_bytes": {"moe": CACHE_BYTES}}
    write_groups(tmp_path / "plan.json", [group | {"experts": {"moe": "places.json"}}])
    models = [{"name": "moe", "path": str(tiny_models / "moe-chat"), "slo": {"ttft": "20s", "tpot": "10s"}}]
    experts = {"mode": "suggest", "every": "300ms", "tokens": 100}
    config = write_server_config(tmp_path / "config.yaml", 2, models, profiles="profiles.json", experts=experts)
    with Server(config) as server:
        look(fresh, server.url)
        for _ in range(4):
            body = {"model": "moe", "prompt": "def main(", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
            assert server.ask("/v1/completions", body)[0] == 200
        fresh.wait(lambda: fresh.text("#expert-maps h3") == "moe on g0", 40, "no heat map")
        fresh.run("document.getElementById('experts').scrollIntoView()")
        fresh.wait(lambda: len(fresh.texts("#expert-maps .js-plotly-plot")) == 2)
        load, replicas = fresh.run("[...document.querySelectorAll('#expert-maps .plot')].map(one => one.data[0].z)")
        assert replicas == [[1] * 8 + [2] + [1] * 7] * 2
        assert [round(sum(layer) / 16, 1) for layer in load] == [1.0, 1.0]
        assert fresh.complaints() == []


@pytest.mark.long
def test_with_keys_the_page_asks_for_one(tmp_path, fresh, monkeypatch):
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "key-of-the-admin")
    with Server(pool(tmp_path, 2, 2)) as server:
        fresh.open(server.url)
        fresh.wait(lambda: fresh.run("!document.getElementById('key-form').hidden"))
        for key in ("not-the-key", "key-of-the-admin"):
            field = fresh.driver.find_element("css selector", "#key")
            field.clear()
            field.send_keys(key + "\n")
            if key == "not-the-key":
                fresh.wait(lambda: "not the admin key" in fresh.text("#key-wrong"))
        fresh.wait(lambda: len(fresh.texts("#models-table tbody tr")) == 2)


@pytest.mark.long
def test_sixty_models_on_sixty_four_devices_stay_smooth(tmp_path, fresh):
    with Server(pool(tmp_path, 64, 60)) as server:
        stop = threading.Event()

        def load():
            while not stop.is_set():
                ask(server, f"small-{time.monotonic_ns() % 30}", 20)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            look(fresh, server.url)
            fresh.wait(lambda: fresh.run("window.penstockUpdates.length") > 20, 60)
            took_ms = fresh.run("window.penstockUpdates")[1:]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(fresh.texts("#device-names li")) == 64
        assert len(fresh.texts("#models-table tbody tr")) == 60
        assert median(took_ms) < 50
        assert sorted(took_ms)[int(0.9 * len(took_ms))] < 50
        assert fresh.complaints() == []


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm: axe-core cannot be fetched")
    folder = tmp_path_factory.mktemp("axe")
    found = subprocess.run([npm, "pack", AXE], cwd=folder, capture_output=True, text=True, timeout=120)
    if found.returncode:
        pytest.skip(f"axe-core cannot be fetched: {found.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_serious_for_those_who_cannot_see_or_point(small, fresh, axe, scheme, width):
    fresh.prefer(scheme)
    fresh.resize(width, 900)
    look(fresh, small.url)
    ask(small, "small-0", 4, **{"x-slo-ms": "20"})
    fresh.wait(lambda: "misses" in fresh.text("#troubles"))
    fresh.driver.execute_script(axe)
    assert serious(fresh) == []
    fresh.click("#happened li button")
    assert serious(fresh) == []


def serious(page):
    found = page.driver.execute_async_script(
        "const done = arguments[0]; axe.run().then(found => done(found.violations), error => done([String(error)]))"
    )
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.long
def test_the_page_can_be_used_by_keyboard(small, fresh):
    from selenium.webdriver.common.keys import Keys

    look(fresh, small.url)
    seen = []

    def is_open():
        return fresh.run("document.getElementById('dialog').open")

    def leave():
        fresh.wait(is_open, 20, f"{seen[-1]} opens nothing")
        fresh.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        fresh.wait(lambda: not is_open(), 20, f"what {seen[-1]} opened stays")

    for _ in range(80):
        fresh.driver.switch_to.active_element.send_keys(Keys.TAB)
        active = fresh.run(
            "[document.activeElement.tagName, document.activeElement.id || document.activeElement.textContent]"
        )
        seen.append(active[1].strip())
        if active[1] == "happened":
            fresh.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
            fresh.driver.switch_to.active_element.send_keys(Keys.ENTER)
            leave()
        if active[1].startswith("small-0"):
            fresh.driver.switch_to.active_element.send_keys(Keys.ENTER)
        if active[1] == "explain-plan":
            fresh.driver.switch_to.active_element.send_keys(Keys.ENTER)
            leave()
            break
    stops = {
        "Skip to the content",
        "theme",
        "span",
        "happened-kind",
        "happened",
        "small-0",
        "ask-planner",
        "explain-plan",
    }
    assert stops <= set(seen)


@pytest.mark.long
def test_reports_are_drawn_without_a_complaint(tmp_path, fresh):
    report = tmp_path / "report.html"
    assert run(["compare", "--save", str(tmp_path)]) == 0
    more = ["--policies", "replication", "--rates", "1,2", "--cvs", "none", "--slo-scales", "none", "--devices", "8"]
    assert run(["compare", str(tmp_path / "problem.json"), *more, "--report", str(report)]) == 0
    fresh.open(report.as_uri())
    assert fresh.run("document.querySelectorAll('.js-plotly-plot').length") > 0
    assert fresh.complaints() == []
    assert [url for url in fresh.requests() if not url.startswith("file:")] == []
    assert Path(report).stat().st_size > 10**6
