"""The training queue on the controller's ledger: each device has one owner, and groups come first."""

from types import SimpleNamespace

import pytest

from placement.errors import InputError
from serving.config import QuotaConfig, TrainingConfig, read_serve_config
from serving.controller.ledger import IDLE, Ledger, Owner
from serving.controller.swaps import DONE
from serving.controller.training import LedgerDevices, open_training
from tests.training.queue.worlds import cluster


@pytest.fixture
def ledger():
    return Ledger(["n0/0", "n0/1", "n0/2"])


def test_what_is_idle_is_open(ledger):
    ledger.move(["n0/0"], IDLE, Owner("group", "g0"))
    devices = LedgerDevices(ledger)
    assert list(devices.open()) == ["n0/1", "n0/2"]
    assert not devices.can_take("a", ["n0/0"])
    devices.take("a", ["n0/1", "n0/2"])
    assert list(devices.open()) == ["n0/1", "n0/2"]
    assert ledger.owned_by(Owner("job", "a")) == ["n0/1", "n0/2"]
    devices.take("a", ["n0/2"])
    assert ledger.owners["n0/1"] == IDLE
    devices.give_back("a")
    devices.give_back("a")
    assert ledger.owned_by(IDLE) == ["n0/1", "n0/2"]


def test_a_device_that_left_while_it_was_recalled_is_open_when_it_is_back(ledger):
    devices = LedgerDevices(ledger)
    devices.recalled.add("n0/9")
    devices.open()
    assert not devices.recalled


def test_jobs_that_share_a_device(ledger):
    devices = LedgerDevices(ledger)
    devices.take("a", ["n0/0"])
    devices.take("b", ["n0/0", "n0/1"])
    assert ledger.owners["n0/0"] == Owner("job", "a, b")
    devices.give_back("a")
    assert ledger.owners["n0/0"] == Owner("job", "b")
    devices.give_back("b")
    assert ledger.owned_by(IDLE) == ["n0/0", "n0/1", "n0/2"]


def test_a_group_takes_a_device_from_a_job(ledger):
    devices = LedgerDevices(ledger)
    devices.take("a", ["n0/0", "n0/1"])
    group = Owner("group", "g0")
    ledger.move(["n0/0"], Owner("job", "a"), group)
    assert list(devices.open()) == ["n0/1", "n0/2"]
    devices.give_back("a")
    assert ledger.owners == {"n0/0": group, "n0/1": IDLE, "n0/2": IDLE}


def test_no_training_without_a_configuration(ledger):
    assert open_training(None, cluster(), ledger, {}, ["/models/m"]) is None


def test_what_a_configuration_says(tmp_path, ledger):
    (tmp_path / "config.yaml").write_text(
        "cluster: {nodes: [{name: n0, devices: 3, kind: cpu, memory: 1GiB}]}\n"
        "models: [{name: m, path: m, slo: 1s}]\n"
        "training: {policy: sjf, store: 'sqlite:///q.db', quotas: {'*': {jobs: 3}}, folder: here, name: first}\n"
    )
    training = read_serve_config(tmp_path / "config.yaml").training
    assert training.folder == str(tmp_path / "here")
    assert not training.commands
    queue = open_training(training, cluster(3), ledger, {}, ["/models/m"])
    assert queue.desk.types == {"lm"}
    assert queue.desk.store.quotas()["*"].jobs == 3
    assert (tmp_path / "q.db").exists()
    queue.desk.store.close()


def test_what_is_wrong_is_one_line(tmp_path, ledger):
    store = f"sqlite:///{tmp_path}/q.db"
    with pytest.raises(InputError, match="'lifo' is not known"):
        open_training(TrainingConfig(policy="lifo", store=store), cluster(), ledger, {}, ["/models/m"])
    with pytest.raises(InputError, match="'srsf' needs durations"):
        open_training(
            TrainingConfig(policy="srsf", durations="none", store=store), cluster(), ledger, {}, ["/models/m"]
        )
    with pytest.raises(InputError, match="needs `folder`"):
        open_training(TrainingConfig(store="postgresql://nowhere/x"), cluster(), ledger, {}, ["/models/m"])
    (tmp_path / "config.yaml").write_text(
        "cluster: {nodes: [{name: n0, devices: 3, kind: cpu, memory: 1GiB}]}\n"
        "models: [{name: m, path: m, slo: 1s}]\ntraining: {quotas: {ann: {jobs: -1}}}\n"
    )
    with pytest.raises(InputError, match="jobs: Expected `int` >= 0"):
        read_serve_config(tmp_path / "config.yaml")
    assert QuotaConfig().devices is None


def test_what_was_trained_to_serve_serves_after_a_server_that_did_not_live_to_see_it(tmp_path, ledger, monkeypatch):
    begun = []
    training = TrainingConfig(policy="sjf", store=f"sqlite:///{tmp_path}/q.db")
    queue = open_training(training, cluster(), ledger, {}, ["/models/m"], lambda *what: begun.append(what))

    def finished(name, ended, serve_as="chat"):
        (tmp_path / name / "model").mkdir(parents=True, exist_ok=True)
        job = SimpleNamespace(lm={"serve_as": serve_as} if serve_as else {})
        return SimpleNamespace(job=job, folder=str(tmp_path / name), ended=ended)

    records = [finished("newer", 2.0), finished("older", 1.0), finished("other", 3.0, None)]
    monkeypatch.setattr(type(queue._store), "ended", lambda self, limit: records)
    queue.serve_trained()
    assert begun == [("chat", tmp_path / "newer" / "model")]
    (tmp_path / "newer" / DONE).touch()
    queue.serve_trained()
    assert len(begun) == 1
    queue.desk.store.close()
