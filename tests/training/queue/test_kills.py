"""kill -9 of the controller at any point: nothing is lost, nothing runs twice at once, every log is whole."""

import random
import time

import pytest

from tests.training.queue.controllers import STEPS, run_controller, start_controller, wait_for_silence, witness
from training.queue import open_store, read_log

KILLED = -9


LONG = 45
"""Steps of a job that still runs when the next controller looks."""


def check(store, folder, names, steps=STEPS):
    assert {record.id: record.state for record in store.jobs()} == dict.fromkeys(names, "finished")
    assert not (folder / "twice").exists()
    assert set((folder / "done").read_text().split()) == set(names)
    for record in store.jobs():
        text = read_log(record.folder).text
        assert all(f"step {step} of {record.id}\n" in text for step in range(steps))
        assert record.attempts >= 1
        assert record.controller is None
        assert record.devices == ()


def kill_and_finish(tmp_path, url, seed, kills):
    """So many controllers are killed, while jobs come; then one lives until all is done."""
    rng = random.Random(seed)
    names, jobs, store = [], tmp_path / "jobs", open_store(url)
    killed = 0
    while killed < kills:
        batch = [f"j{len(names) + index}" for index in range(rng.randint(0, 2) if store.live() else 3)]
        elastic = {"min_gpus": 1, "gpus": 1, "max_gpus": 3} if rng.random() < 0.3 else {"gpus": rng.randint(1, 3)}
        store.submit([witness(tmp_path, name, **elastic) for name in batch], "me")
        names += batch
        if rng.random() < 0.7:
            fate = run_controller(url, jobs, rng.randint(1, 45), rng.choice(["fcfs", "penstock", "srtf"]))
        else:
            fate = run_controller(url, jobs, kill_after_s=rng.uniform(0.05, 0.8))
        killed += fate == KILLED
    assert run_controller(url, jobs) == 0
    wait_for_silence(jobs)
    check(store, tmp_path, names)
    store.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_few_kills(tmp_path, seed):
    kill_and_finish(tmp_path, f"sqlite:///{tmp_path}/q.db", seed, kills=4)


def test_kills_on_postgres(tmp_path, postgres_url):
    kill_and_finish(tmp_path, postgres_url, 7, kills=3)


def test_another_controller_takes_over(tmp_path, store_url):
    """One of two is killed and never comes back; the other has its jobs when the lease is over."""
    store, jobs = open_store(store_url), tmp_path / "jobs"
    names = [f"j{number}" for number in range(8)]
    store.submit([witness(tmp_path, name, LONG) for name in names], "me")
    one, other = (start_controller(store_url, jobs, name=name, lease_s=2.0) for name in ("c0", "c1"))
    deadline = time.monotonic() + 20
    while {record.controller for record in store.jobs(("running",))} != {"c0", "c1"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    one.kill()
    other.join(60)
    assert other.exitcode == 0
    one.join()
    wait_for_silence(jobs)
    check(store, tmp_path, names, LONG)
    assert any(event.why == "controller c0 is gone" for name in names for event in store.events(name))
    store.close()


@pytest.mark.parametrize("at", range(4, 13))
def test_each_point_of_a_first_start(tmp_path, at):
    """From the claim to the note that it runs: a run that was begun is found again, and goes on undisturbed."""
    url = f"sqlite:///{tmp_path}/q.db"
    store = open_store(url)
    store.submit([witness(tmp_path, "a", LONG)], "me")
    assert run_controller(url, tmp_path / "jobs", at) == KILLED
    assert run_controller(url, tmp_path / "jobs") == 0
    check(store, tmp_path, ["a"], LONG)
    assert store.get("a").attempts == (2 if at in (6, 7) else 1)
    store.close()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_kills(tmp_path):
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kill_and_finish(folder, f"sqlite:///{folder}/q.db", 100 + seed, kills=10)
