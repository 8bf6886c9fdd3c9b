"""What people type: times, shares, values by model, lengths; and what is wrong with it in one line."""

import pytest

from loadgen import option_text
from loadgen.errors import TrafficError
from loadgen.results.goals import goodput_goal, slo_goals
from loadgen.stages import stages_from
from loadgen.target.look import list_models
from loadgen.target.models import ListedModel, TargetModel, choose_models
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions

CHAT, EMBED = TargetModel("chat"), TargetModel("embed", "embed")


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("1.5s", 1.5), ("2min", 120), ("1h", 3600), ("7", 7), (" 3 s ", 3)]
)
def test_times(text, seconds):
    assert option_text.seconds(text, "--x") == pytest.approx(seconds)
    assert option_text.seconds("7", "--x", option_text.MS) == pytest.approx(0.007)


@pytest.mark.parametrize("text", ["", "ms", "-1s", "0", "5parsec", "1e999s", "nan"])
def test_what_is_no_time(text):
    with pytest.raises(TrafficError, match=r"^--x: "):
        option_text.seconds(text, "--x")


def test_shares():
    assert option_text.share("99%", "--at") == pytest.approx(0.99)
    assert option_text.share("0.5", "--at") == 0.5
    for wrong in ("0", "101%", "all"):
        with pytest.raises(TrafficError, match=r"^--at: "):
            option_text.share(wrong, "--at")


def test_one_value_or_one_for_each_model():
    assert option_text.by_model("3", ["a", "b"], "--cv") == {"a": "3", "b": "3"}
    assert option_text.by_model("a=3, b=1", ["a", "b"], "--cv") == {"a": "3", "b": "1"}
    assert option_text.by_model("a=x=3", ["a=x"], "--cv") == {"a=x": "3"}
    for wrong in ("c=3", "a=", "a=1,3"):
        with pytest.raises(TrafficError, match=r"^--cv"):
            option_text.by_model(wrong, ["a", "b"], "--cv")


def test_lengths():
    assert option_text.length("128", "--p").mean == 128
    drawn = option_text.length("128~0.8:16-1024", "--p")
    assert (drawn.mean, drawn.cv, drawn.low, drawn.high) == (128, 0.8, 16, 1024)
    for wrong in ("many", "0", "128~", "128~1:9-3", "-5"):
        with pytest.raises(TrafficError, match=r"^--p: "):
            option_text.length(wrong, "--p")


def test_goals_of_an_slo():
    chat, embed = slo_goals("chat=500ms/50ms,embed=200", [CHAT, EMBED])
    assert (chat.ttft_s, chat.tpot_s, embed.latency_s) == (0.5, 0.05, 0.2)
    assert chat.headers == {"x-slo-ms": "500", "x-slo-tpot-ms": "50"}
    assert embed.headers == {"x-slo-ms": "200"}
    assert slo_goals("", [CHAT])[0].headers == {}
    with pytest.raises(TrafficError, match="embed does not generate"):
        slo_goals("500/50", [CHAT, EMBED])


def test_goals_of_goodput():
    goal = goodput_goal(["ttft:500", "tpot:50", "e2el:2s"])
    assert (goal.ttft_s, goal.tpot_s, goal.latency_s) == (0.5, 0.05, 2.0)
    assert goodput_goal([""]) is None
    with pytest.raises(TrafficError, match=r"^--goodput: 'latency:3'"):
        goodput_goal(["latency:3"])


def test_stages_follow_each_other():
    stages = stages_from(TrafficOptions(stages="10,20:3,40:4:5s", duration="10s", cv="2"))
    assert [(one.start_s, one.duration_s, one.rate_per_s, one.cv) for one in stages] == [
        (0, 10, 10, "2"),
        (10, 10, 20, "3"),
        (20, 5, 40, "4"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "0"}, "^--rate: "),
        ({"rate": "fast"}, "^--rate: "),
        ({"rate": "1e9"}, "^--rate: "),
        ({"duration": "0"}, "^--duration: "),
        ({"stages": "5:"}, "^--stages: "),
        ({"stages": "1:2:3:4"}, "^--stages: "),
        ({"stages": "5", "rate": "5"}, "^--rate: .*stages"),
        ({"trace": "x.csv", "rate": "5"}, "^--rate: .*trace"),
        ({"cv_scale": "2"}, "^--cv-scale: .*--trace"),
    ],
)
def test_nonsense_is_named(options, message):
    with pytest.raises(TrafficError, match=message) as caught:
        stages_from(TrafficOptions(**options))
    assert "\n" not in str(caught.value)


def test_models_are_chosen_by_name_by_mix_or_all():
    listed = [
        ListedModel("a", "generate", 64),
        ListedModel("b", "embed"),
        ListedModel("c", "classify"),
        ListedModel("d"),
    ]
    every = choose_models(listed, "", "", "", "http://x")
    assert [(one.name, one.kind, one.max_tokens) for one in every] == [
        ("a", "generate", 64),
        ("b", "embed", None),
        ("d", "generate", None),
    ]
    assert [one.name for one in choose_models(listed, "b,a", "", "", "http://x")] == ["b", "a"]
    assert [one.name for one in choose_models(listed, "", "b=1,a=2", "", "http://x")] == ["b", "a"]
    assert choose_models(listed, "d", "", "d=embed", "http://x")[0].kind == "embed"
    for names, kinds in (("nope", ""), ("a,a", ""), ("c", ""), ("d", "d=magic")):
        with pytest.raises(TrafficError):
            choose_models(listed, names, "", kinds, "http://x")


def test_urls():
    assert parse_url("http://h:8000/v1/").base == "http://h:8000"
    assert parse_url("https://h/p/v1").base == "https://h:443/p"
    assert parse_url("http://[::1]:8").origin == "http://[::1]:8"
    for wrong in ("", "foo", "ftp://h", "http://", "http://h:port", "http://h:0", "http://h?x=1", "http://h/a b"):
        with pytest.raises(TrafficError, match=r"^--url: "):
            parse_url(wrong)


def test_the_option_by_which_a_server_was_given_is_named():
    with pytest.raises(TrafficError, match=r"^--host: "):
        parse_url("nonsense", "--host")
    with pytest.raises(TrafficError, match=r"give the right --host$"):
        list_models(parse_url("http://127.0.0.1:1", "--host"), "")
    with pytest.raises(TrafficError, match=r"give the right --url$"):
        list_models(parse_url("http://127.0.0.1:1"), "")


def test_a_time_may_be_from_zero():
    assert option_text.seconds("0", "--trace-start", from_zero=True) == 0
    with pytest.raises(TrafficError, match=r"^--duration: "):
        option_text.seconds("0", "--duration")
