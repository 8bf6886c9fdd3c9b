"""Reports: one file each, nothing loaded from outside, and names from users' files stay text."""

import html
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.compare import compare_policies
from placement.errors import InputError
from placement.plan import Group, Plan
from placement.planner import make_plan
from placement.problem import Slo
from placement.report import write_comparison_png, write_comparison_report, write_plan_report
from placement.report.figures import latencies, requests_over_time, utilisation
from placement.report.picture import MOST_DEVICES, plan_picture
from placement.search.effort import Effort
from placement.simulate import simulate
from reports.page import MOST_ROWS, Page, percent, seconds
from tests.placement.small import GIB, chat_problem, small_problem
from tests.placement.worlds import worlds

HOSTILE = ("</script><b>", '"><img src=x onerror=alert(1)>', "<!--", "&lt;i&gt;", "\u2028'\ud800")
COMMAND = "penstock plan '</pre><script>alert(1)</script>' --report out.html"


class Reader(HTMLParser):
    """Tags in order, with attributes; the text outside scripts and styles; the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts, self._inside = [], "", [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else self._inside
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = None if tag == self._inside else self._inside

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside is None:
            self.text += data

    def figures(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def hostile():
    problem = small_problem(models=6, devices=4, rate=5.0, names=HOSTILE)
    plan = make_plan(problem, effort=Effort(steps=5))
    return problem, plan, simulate(problem, plan)


@pytest.fixture(scope="module")
def plan_page(hostile, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "plan.html"
    write_plan_report(path, *hostile, COMMAND)
    return path.read_text()


@pytest.fixture(scope="module")
def comparison():
    return compare_policies(
        small_problem(names=HOSTILE), rates=(1.0, 2.0), cvs=(1.0,), slo_scales=(0.5,), devices=(), steps=3
    )


@pytest.fixture(scope="module")
def comparison_page(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "comparison.html"
    write_comparison_report(path, comparison, COMMAND)
    return path.read_text()


@pytest.mark.parametrize("name", ["plan_page", "comparison_page"])
def test_names_do_not_break_out(name, request):
    page = Reader(request.getfixturevalue(name))
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert "i" not in tags
    assert tags.count("b") == tags.count("span")  # the figures at the top, and nobody's name
    assert tags.count("script") == 3
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert COMMAND in page.text
    assert HOSTILE[0] in page.text or HOSTILE[1] in page.text
    assert "</" not in page.scripts[0]
    assert "<!--" not in page.scripts[0]


def test_plotly_is_given_escaped_labels(plan_page):
    """It reads a little HTML of its own in labels."""
    labels = Reader(plan_page).figures()["figure-0"]["layout"]["xaxis"]["ticktext"]
    assert [html.unescape(label) for label in labels[:3]] == [
        HOSTILE[0],
        HOSTILE[1][:23] + "…",
        HOSTILE[2],
    ]
    assert not [label for label in labels if "<" in label]


@pytest.mark.parametrize("name", ["plan_page", "comparison_page"])
def test_nothing_is_loaded_from_outside(name, request):
    page = Reader(request.getfixturevalue(name))
    assert not [key for _, attributes in page.tags for key in attributes if key in ("src", "href", "srcset")]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "Plotly" in page.scripts[1]


def test_the_plan_page_says_what_came_of_it(plan_page, hostile):
    problem, plan, outcome = hostile
    page = Reader(plan_page)
    assert percent(outcome.attainment) in page.text
    for device in problem.cluster.devices:
        assert device.name in page.text
    for index, group in enumerate(plan.groups):
        assert f"G{index}: tp {group.tp}, pp {group.pp}" in page.text
    assert "planner: policy" in page.text
    assert len(page.figures()) == 3
    refused = outcome.summary()["reasons"].get("refused", 0)
    assert refused > 0
    assert f"all{refused}" in page.text


def test_generating_models_have_a_page_too(tmp_path):
    problem = chat_problem()
    plan = make_plan(problem, "replication")
    outcome = simulate(problem, plan)
    write_plan_report(tmp_path / "chat.html", problem, plan, outcome, COMMAND)
    page = Reader((tmp_path / "chat.html").read_text())
    assert "TTFT 500 ms, TPOT 50 ms" in page.text
    assert np.max(page.figures()["figure-1"]["data"][0]["z"]) > 0


def test_the_comparison_page_has_every_curve(comparison_page, comparison):
    page = Reader(comparison_page)
    assert list(page.figures()) == ["figure-0", "figure-1", "figure-2"]
    for axis, figure in zip(comparison.axes, page.figures().values(), strict=True):
        assert len(figure["data"]) == len(comparison.base)
        assert all(trace["x"] == comparison.values(axis) for trace in figure["data"])
    for row in comparison.limit_rows():
        assert row[0] in page.text


def test_the_png_is_one(comparison, tmp_path):
    write_comparison_png(tmp_path / "c.png", comparison)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    nothing = replace(comparison, points=())
    write_comparison_png(tmp_path / "nothing.png", nothing)
    assert (tmp_path / "nothing.png").stat().st_size > 1000


def test_a_path_that_cannot_be_written_is_wrong_input(hostile, comparison, tmp_path):
    path = tmp_path / "none" / "report.html"
    for write in (
        lambda: write_plan_report(path, *hostile, COMMAND),
        lambda: write_comparison_report(path, comparison, COMMAND),
        lambda: write_comparison_png(path, comparison),
    ):
        with pytest.raises(InputError, match="cannot be written"):
            write()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(("deadline", "shortest-queue")))
def test_work_over_time_adds_up_to_all_work(world, rule):
    outcome = simulate(world.problem, world.plan, rule=rule)
    figure = utilisation(outcome)["data"][0]
    width = 2 * figure["x"][0]
    shares = np.array(figure["z"])
    assert shares.min() >= 0
    assert shares.max() <= 1
    np.testing.assert_allclose(shares.sum(axis=1) * width, outcome.busy_s, atol=1e-3 * width)
    bars = requests_over_time(outcome)["data"]
    assert sum(map(sum, (bar["y"] for bar in bars))) * width == pytest.approx(len(world.workload), rel=1e-3)


def test_models_without_answers_have_no_latency(hostile):
    problem, plan, _ = hostile
    without = tuple(
        msgspec.structs.replace(group, models=tuple(name for name in group.models if name != "m5"))
        for group in plan.groups
    )
    figure = latencies(simulate(problem, Plan(without)))
    assert [trace["name"] for trace in figure["data"]] == ["p50", "p90", "p99", "SLO"]
    assert [trace["y"][5] for trace in figure["data"]] == [None, None, None, 0.5]


def test_a_goal_without_an_end_is_not_drawn(hostile):
    problem, _, outcome = hostile
    models = tuple(replace(model, slo=Slo(ttft=1.0)) for model in problem.models)
    figure = latencies(replace(outcome, problem=replace(problem, models=models)))
    assert [trace["name"] for trace in figure["data"]] == ["p50", "p90", "p99"]


def test_the_picture_shows_groups_across_nodes_and_idle_devices():
    problem = small_problem(devices=6)
    plan = Plan(
        (
            Group(("n0/1", "n1/2"), tp=1, pp=2, models=("m0",), parked=("m1",)),
            Group(("n1/0", "n1/1"), tp=2, pp=1),
        )
    )
    picture = Reader(plan_picture(problem.cluster, plan))
    assert picture.text.count("idle") == 2
    assert picture.text.count("G0: tp 1, pp 2") == 2
    assert picture.text.count("stage 1") == 1
    assert "shard 1" in picture.text
    assert "(m1)" in picture.text


def test_many_models_and_devices_are_cut_short_and_said_so():
    names = tuple(f"{'n' * 30}{number}" for number in range(100))
    problem = small_problem(models=100, devices=2, names=names)
    plan = Plan((Group(("n0/0",), tp=1, pp=1, models=names),))
    text = Reader(plan_picture(problem.cluster, plan)).text
    assert "+91 more" in text
    assert all(name in text for name in names)
    nodes = (msgspec.structs.replace(problem.cluster.nodes[0], devices=MOST_DEVICES + 5, memory=GIB),)
    large = msgspec.structs.replace(problem.cluster, nodes=nodes)
    assert "and 5 devices more" in plan_picture(large, plan)
    page = Page("many")
    page.table(["row"], [[number] for number in range(MOST_ROWS + 1)])
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 1} rows." in page.html()


def test_numbers_are_written_for_people():
    written = [seconds(0.0123), seconds(0.99999), seconds(75.25), seconds(None), seconds(float("inf"))]
    assert written == ["12.3 ms", "1 s", "75.25 s", "", "none"]
    assert [percent(0.999999), percent(1.0), percent(float("nan"))] == ["99.99%", "100.00%", ""]


def test_drawing_libraries_are_loaded_when_drawing():
    code = "import sys, placement.report; print({'plotly', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
