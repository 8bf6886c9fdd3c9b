"""Reading jobs: what is right is read, what is wrong is refused in one line that names the place."""

from __future__ import annotations

import gzip

import pytest

from placement.errors import InputError
from training.job_files import CSV_OPTIONAL, CSV_REQUIRED, read_jobs
from training.jobs import Amdahl, Batch, Job, Measured, Pollux

HEADER = "id,arrival,duration,gpus"


def write(tmp_path, text, name="jobs.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_with_optional_columns_in_any_order(tmp_path):
    text = "gpus,id,arrival,duration,min_gpus,max_gpus,kind,user,tag\n4,b,10,5.5,2,8,v100,ann,t\n1,a,0,3,,,,,\n"
    first, second = read_jobs(write(tmp_path, text))
    assert (first.id, first.fewest, first.most, first.elastic) == ("a", 1, 1, False)
    assert (second.id, second.duration, second.fewest, second.most, second.user) == ("b", 5.5, 2, 8, "ann")


def test_packed_csv(tmp_path):
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER}\nx,0,1,1\n".encode()))
    assert read_jobs(path)[0].id == "x"
    path.write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_jobs(path)


EVERY = {
    "id": ("a", "a"),
    "gpus": ("4", 4),
    "arrival": ("1h", 3600.0),
    "duration": ("10min", 600.0),
    "min_gpus": ("2", 2),
    "max_gpus": ("8", 8),
    "user": ("ann", "ann"),
    "group": ("vision", "vision"),
    "model": ("resnet", "resnet"),
    "tag": ("nightly", "nightly"),
    "kind": ("v100", "v100"),
    "speeds": ("{v100: 2, t4: 1}", {"v100": 2.0, "t4": 1.0}),
    "mixed": ("false", False),
    "memory": ("4GiB", 4 << 30),
    "cpus": ("1.5", 1.5),
    "priority": ("-2.5", -2.5),
    "deadline": ("2h", 7200.0),
    "curve": ("{law: amdahl, serial: 0.25}", Amdahl(serial=0.25)),
    "spread_speed": ("0.5", 0.5),
    "checkpoint": ("3s", 3.0),
    "restart": ("30s", 30.0),
    "resize": ("5s", 5.0),
    "batch": ("{start: 8, largest: 64, device_largest: 32}", Batch(8, 64, 32)),
    "share": ("1.0", 1.0),
}
"""Each field as a file has it, and as the job does."""


@pytest.mark.parametrize("kind", ["yaml", "csv"])
def test_every_field_is_read(tmp_path, kind):
    assert set(EVERY) == set(Job.__struct_fields__)
    names = list(EVERY) if kind == "yaml" else [*CSV_REQUIRED, *CSV_OPTIONAL]
    if kind == "yaml":
        text = "jobs:\n- " + "\n  ".join(f"{name}: {EVERY[name][0]}" for name in names) + "\n"
    else:
        text = ",".join(names) + "\n" + ",".join(EVERY[name][0] for name in names) + "\n"
    (read,) = read_jobs(write(tmp_path, text, f"jobs.{kind}"))
    blank = Job(id="a", gpus=4)
    for name, (_, value) in EVERY.items():
        assert getattr(read, name) == (value if name in names else getattr(blank, name)), name
    assert [
        name for name in names if name not in ("id", "gpus", "share") and EVERY[name][1] == getattr(blank, name)
    ] == []
    (part,) = read_jobs(write(tmp_path, "id,arrival,duration,gpus,share\na,0,1,1,25%\n"))
    assert part.share == 0.25


def test_yaml_has_units_and_curves(tmp_path):
    text = """
jobs:
  - {id: a, gpus: 2, duration: 10min, arrival: 1h, deadline: 2h, share: 50%, memory: 4GiB, cpus: 6, restart: 30s}
  - {id: b, gpus: 4, min_gpus: 2, max_gpus: 8, duration: 60, curve: {law: amdahl, serial: 0.1}}
  - {id: c, gpus: 2, duration: 60, max_gpus: 4, curve: {law: measured, throughput: {1: 10, 2: 19, 4: 30}}}
  - id: d
    gpus: 1
    duration: 60
    batch: {start: 128, largest: 4096, device_largest: 256}
    curve: {law: pollux, alpha_grad: 0.1, beta_grad: 0.01, alpha_local: 0.1, beta_local: 0.01, alpha_node: 0.2,
            beta_node: 0.02, gamma: 2, noise_scale: 1000}
"""
    jobs = {job.id: job for job in read_jobs(write(tmp_path, text, "jobs.yaml"))}
    assert jobs["a"].duration == 600
    assert jobs["a"].share == 0.5
    assert jobs["a"].memory == 4 << 30
    assert jobs["b"].curve == Amdahl(serial=0.1)
    assert isinstance(jobs["c"].curve, Measured)
    assert isinstance(jobs["d"].curve, Pollux)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a,0,1,0", "line 2: gpus: Expected `int` >= 1"),
        ("a,0,1,-3", "gpus"),
        ("a,0,1,1.5", "gpus"),
        ("a,0,1,99999999999999999999", "gpus"),
        ("a,-5,1,1", "arrival: expected a time"),
        ("a,nan,1,1", "arrival"),
        ("a,0,0,1", "duration 0; a job takes time"),
        ("a,0,1e300,1", "duration"),
        ("a,0,x,1", "duration"),
        (",0,1,1", "id"),
        ("a,0,1", "3 cells for 4 columns"),
        ("a,0,1,1\na,0,1,1", "two jobs have the id 'a'"),
        ("", "0 jobs"),
    ],
)
def test_bad_rows_are_refused(tmp_path, row, says):
    with pytest.raises(InputError) as caught:
        read_jobs(write(tmp_path, f"{HEADER}\n{row}\n"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "jobs.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "says"),
    [("id,arrival,gpus", "no column `duration`"), (f"{HEADER},colour", "'colour' is not known"), ("", "no column")],
)
def test_bad_headers_are_refused(tmp_path, header, says):
    with pytest.raises(InputError, match=says):
        read_jobs(write(tmp_path, f"{header}\n"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("min_gpus: 4", "they must ascend"),
        ("max_gpus: 1", "they must ascend"),
        ("share: 2", "share 2"),
        ("share: 0", "share 0"),
        ("speeds: {v100: -1}", "speed -1"),
        ("speeds: {v100: 0}", "every speed is 0"),
        ("kind: t4, speeds: {v100: 1}", "no speed on 't4'"),
        ("curve: {law: amdahl, serial: 2}", "serial"),
        ("curve: {law: measured, throughput: {}}", "needs throughputs"),
        ("curve: {law: measured, throughput: {0: 1}}", "measured at 0"),
        ("curve: {law: magic}", "law"),
        ("priority: 1e300", "priority"),
        ("deadline: -1", "deadline"),
        ("colour: red", "colour"),
        ("batch: {start: 8, largest: 4}", "below the first"),
    ],
)
def test_bad_yaml_fields_are_refused(tmp_path, fields, says):
    with pytest.raises(InputError) as caught:
        read_jobs(write(tmp_path, f"jobs: [{{id: a, gpus: 2, duration: 1, {fields}}}]\n", "jobs.yaml"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_holds_itself_is_refused(tmp_path):
    with pytest.raises(InputError):
        read_jobs(write(tmp_path, "jobs: &a [*a]\n", "jobs.yaml"))
    with pytest.raises(InputError):
        read_jobs(write(tmp_path, "jobs: [&b {id: a, gpus: 1, speeds: *b}]\n", "jobs.yaml"))
