"""Readers: what a sound file gives, and the one line a broken one gets."""

import gzip

import numpy as np
import pytest

from loadgen.errors import TrafficError
from loadgen.servegen import read_servegen, read_servegen_tokens
from loadgen.traces import read_azure, read_workload

HEADER = "arrival_s,input_tokens,output_tokens\n"


def write_gz(path, text):
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def servegen_fields(**changes):
    fields = {
        "client_id": np.array([7, 9], dtype=np.int32),
        "window_start_s": np.array([0, 600, 1200], dtype=np.int32),
        "rate": np.array([[1.0, 5.0, 0.0], [0.0, 2.0, 2.0]], dtype=np.float32),
        "cv": np.array([[1.0, 3.0, 0.0], [0.0, 0.5, 2.0]], dtype=np.float32),
        "dist": np.array([[1, 1, 0], [0, 2, 2]], dtype=np.int8),
    }
    return fields | changes


def write_servegen(path, **changes):
    np.savez(path, **servegen_fields(**changes))
    return path


def refusal(read, *arguments):
    with pytest.raises(TrafficError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message  # what is wrong; what would be right
    return message


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_azure_is_read_plain_or_zipped(tmp_path, name):
    path = tmp_path / name
    text = HEADER + "0.0,4808,10\n0.052,3180,8\n0.052,1,0\n"
    write_gz(path, text) if name.endswith("gz") else path.write_text(text)
    trace = read_azure(path)
    assert trace.arrival.tolist() == [0.0, 0.052, 0.052]
    assert trace.model.tolist() == [0, 0, 0]
    assert trace.prompt_tokens.tolist() == [4808, 3180, 1]
    assert trace.output_tokens.tolist() == [10, 8, 0]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("time,input_tokens,output_tokens\n0,1,1\n", ":1: ", "no column arrival_s"),
        ("", ":1: ", "no column arrival_s"),
        (HEADER, ": ", "no requests"),
        (HEADER + "0,1,1\nx,1,1\n", ":3: ", "arrival_s is 'x'"),
        (HEADER + "0,1,1\nnan,1,1\n", ":3: ", "arrival_s"),
        (HEADER + "2,1,1\n1,1,1\n", ":3: ", "goes back"),
        (HEADER + "-1,1,1\n", ":2: ", "goes back"),
        (HEADER + "0,1.5,1\n", ":2: ", "input_tokens is '1.5'"),
        (HEADER + "0,1,-3\n", ":2: ", "output_tokens is '-3'"),
        (HEADER + "0,1\n", ":2: ", "output_tokens is None"),
        (HEADER + "0,1,99999999999\n", ":2: ", "output_tokens"),
    ],
)
def test_broken_azure_is_refused_by_line(tmp_path, text, where, what):
    path = write_gz(tmp_path / "t.csv.gz", text)
    message = refusal(read_azure, path)
    assert message.startswith(f"{path}{where}")
    assert what in message


def test_unreadable_files_are_refused_by_name(tmp_path):
    for read, name in ((read_azure, "a.csv.gz"), (read_workload, "a.npz"), (read_servegen, "a.npz")):
        assert "no such file" in refusal(read, tmp_path / name)
    not_gz = tmp_path / "b.csv.gz"
    not_gz.write_text(HEADER)
    whole = write_gz(tmp_path / "whole.csv.gz", HEADER + "0,1,1\n" * 1000)
    cut_gz = tmp_path / "c.csv.gz"
    cut_gz.write_bytes(whole.read_bytes()[:-20])
    latin = tmp_path / "d.csv"
    latin.write_bytes(b"arrival_s,input_tokens,output_tokens\n\xff,1,1\n")
    for path in (not_gz, cut_gz, latin, tmp_path):
        assert refusal(read_azure, path).startswith(f"{path}: cannot be read")
    archive = write_servegen(tmp_path / "e.npz")
    cut_npz = tmp_path / "f.npz"
    cut_npz.write_bytes(archive.read_bytes()[:-100])
    junk = tmp_path / "g.npz"
    junk.write_text("junk")
    empty = tmp_path / "h.npz"
    empty.write_bytes(b"")
    single = tmp_path / "i.npz"
    with single.open("wb") as file:
        np.save(file, np.arange(3))
    pickled = tmp_path / "j.npz"
    np.savez(pickled, arrival=np.array([{}], dtype=object), model=np.array([0]))
    for path in (cut_npz, junk, empty, single, pickled):
        assert refusal(read_workload, path).startswith(f"{path}: ")


def test_workload_is_read(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(
        path,
        arrival=[0.5, 1.5],
        model=np.array([1, 0]),
        prompt_tokens=[3, 4],
        output_tokens=[5, 6],
        version=1,
    )
    workload = read_workload(path, models=2)
    assert workload.arrival.tolist() == [0.5, 1.5]
    assert workload.model.dtype == np.int32
    assert workload.model.tolist() == [1, 0]
    assert workload.output_tokens.tolist() == [5, 6]
    assert "model 1 does not exist" in refusal(read_workload, path, 1)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"arrival": [1.0]}, "no field model"),
        ({"arrival": [2.0, 1.0], "model": [0, 0]}, "arrival[1]"),
        ({"arrival": [np.nan], "model": [0]}, "arrival[0]"),
        ({"arrival": [-1.0], "model": [0]}, "arrival[0]"),
        ({"arrival": [1.0], "model": [0, 1]}, "model"),
        ({"arrival": [1.0], "model": [-1]}, "model[0]"),
        ({"arrival": [1.0], "model": [0.5]}, "model"),
        ({"arrival": [1.0], "model": [2**40]}, "model"),
        ({"arrival": ["x"], "model": [0]}, "arrival"),
        ({"arrival": [[1.0]], "model": [0]}, "arrival"),
        ({"arrival": [1.0], "model": [0], "prompt_tokens": [3]}, "output_tokens"),
        ({"arrival": [1.0], "model": [0], "prompt_tokens": [3], "output_tokens": [-3]}, "output_tokens[0]"),
        ({"arrival": [1.0], "model": [0], "version": 2}, "version 2"),
    ],
)
def test_broken_workload_is_refused_by_field(tmp_path, fields, what):
    path = tmp_path / "w.npz"
    np.savez(path, **fields)
    message = refusal(read_workload, path)
    assert message.startswith(f"{path}: ")
    assert what in message


def test_servegen_draws_the_measured_rates(tmp_path):
    trace = read_servegen(write_servegen(tmp_path / "s.npz"))
    assert (trace.window_s, trace.duration_s) == (600.0, 1800.0)
    runs = [trace.arrivals(7, 0.0, 1800.0, np.random.default_rng(s)) for s in range(100)]
    counts = np.mean([np.histogram(run, [0, 600, 1200, 1800])[0] for run in runs], axis=0)
    assert counts == pytest.approx([600, 3000, 0], rel=0.05)
    weibull = trace.arrivals(9, 600.0, 600.0, np.random.default_rng(0), rate_scale=100.0)
    gaps = np.diff(weibull)
    assert weibull.size == pytest.approx(120_000, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.02)
    # Half as spread a Weibull is not a Gamma: its third moment tells them apart.
    skew = ((gaps / gaps.mean() - 1) ** 3).mean() / 0.5**3
    assert skew == pytest.approx(0.566, abs=0.1)  # a Gamma's would be 2 x 0.5 = 1


def test_servegen_part_of_a_window_keeps_the_rate_and_scales(tmp_path):
    trace = read_servegen(write_servegen(tmp_path / "s.npz"))
    runs = [trace.arrivals(7, 550.0, 100.0, np.random.default_rng(s), rate_scale=2.0) for s in range(400)]
    counts = np.mean([np.histogram(run, [0, 50, 100])[0] for run in runs], axis=0)
    assert counts == pytest.approx([100, 500], rel=0.08)
    wide = trace.arrivals(7, 600.0, 600.0, np.random.default_rng(0), rate_scale=100.0, cv_scale=2.0)
    gaps = np.diff(wide)
    assert gaps.std() / gaps.mean() == pytest.approx(6, rel=0.05)


def test_servegen_refuses_what_is_not_there(tmp_path):
    trace = read_servegen(write_servegen(tmp_path / "s.npz"))
    generator = np.random.default_rng(0)
    assert "client 8" in refusal(trace.arrivals, 8, 0.0, 10.0, generator)
    assert "the trace ends at 1800 s" in refusal(trace.arrivals, 7, 1700.0, 101.0, generator)
    assert "start" in refusal(trace.arrivals, 7, -1.0, 10.0, generator)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rate": np.ones((2, 2))}, "rate has shape (2, 2)"),
        ({"rate": -np.ones((2, 3))}, "rate[0, 0]"),
        ({"rate": np.full((2, 3), np.nan)}, "rate holds"),
        ({"cv": np.zeros((2, 3))}, "cv[0, 0]"),
        ({"dist": np.zeros((2, 3))}, "dist[0, 0]"),
        ({"dist": np.full((2, 3), 5)}, "dist[0, 0]"),
        ({"window_start_s": np.array([0, 600, 1300])}, "window_start_s"),
        ({"window_start_s": np.array([0, 0, 0])}, "window_start_s"),
        ({"client_id": np.array([7, 7])}, "client_id"),
        ({"client_id": np.array(["a", "b"])}, "client_id"),
    ],
)
def test_broken_servegen_is_refused_by_field(tmp_path, changes, what):
    path = write_servegen(tmp_path / "s.npz", **changes)
    message = refusal(read_servegen, path)
    assert message.startswith(f"{path}: ")
    assert what in message


def token_csv(tmp_path, *rows):
    sides = [f"{side}_tokens_p{p}" for side in ("input", "output") for p in (10, 25, 50, 75, 90, 99)]
    path = tmp_path / "tokens.csv"
    path.write_text("\n".join([",".join(["client", *sides]), *rows]) + "\n")
    return path


def test_servegen_tokens_follow_the_percentiles(tmp_path):
    path = token_csv(tmp_path, "3,10,20,30,40,50,60,1,2,3,4,5,6")
    drawn = read_servegen_tokens(path)[3].draw(50_000, np.random.default_rng(0))
    assert np.quantile(drawn.prompt, [0.25, 0.5, 0.9]) == pytest.approx([20, 30, 50], abs=1)
    assert np.median(drawn.output) == 3


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("4,10,20,30,40,50,60,1,2,3,4,5,", "output_tokens_p99"),
        ("4,10,20,30,40,50,x,1,2,3,4,5,6", "input_tokens_p99"),
        ("4,20,10,30,40,50,60,1,2,3,4,5,6", "quantiles"),
        ("3,10,20,30,40,50,60,1,2,3,4,5,6", "client 3"),
        ("4.5,10,20,30,40,50,60,1,2,3,4,5,6", "client 4.5"),
    ],
)
def test_broken_servegen_tokens_are_refused_by_line(tmp_path, row, what):
    path = token_csv(tmp_path, "3,10,20,30,40,50,60,1,2,3,4,5,6", row)
    message = refusal(read_servegen_tokens, path)
    assert message.startswith(f"{path}:3: ")
    assert what in message
