"""Which trained model stands for a configured one at the next start: what is remembered, and what is not believed."""

import shutil

import msgspec
import pytest

from placement.files import write_json
from serving.config import ModelEntry
from serving.controller.served import _read
from serving.controller.swaps import FILE_NAME, Memory, Swapped, recall


@pytest.fixture
def trained(made, tmp_path):
    return shutil.copytree(made[0] / "chat", tmp_path / "trained")


@pytest.fixture
def files(made):
    slo = {"ttft": "1s", "tpot": "1s"}
    return {"chat": _read(msgspec.convert({"name": "chat", "path": str(made[0] / "chat"), "slo": slo}, ModelEntry))}


def remember(folder, path, instead_of, name="chat"):
    write_json(folder / FILE_NAME, Memory({name: Swapped(str(path), str(instead_of))}))


def test_what_was_served_is_served_again(files, trained, tmp_path):
    remember(tmp_path, trained, files["chat"].entry.path)
    assert [(one.model, one.what) for one in recall(files, tmp_path)] == [("chat", "replaced")]
    assert files["chat"].entry.path == str(trained)


@pytest.mark.parametrize("name", ["chat", "gone"])
def test_a_model_that_was_configured_anew_or_is_no_more_stays_as_it_is(files, trained, tmp_path, name):
    before = dict(files)
    remember(tmp_path, trained, tmp_path / "another", name)
    assert recall(files, tmp_path) == []
    assert files == before


def test_what_cannot_be_served_any_more_is_told_in_one_line(files, made, tmp_path):
    before = dict(files)
    assert recall(files, tmp_path) == recall(files, None) == []
    remember(tmp_path, tmp_path / "nowhere", files["chat"].entry.path)
    (told,) = recall(files, tmp_path)
    assert told.what == "not replaced"
    assert "nowhere" in told.why
    remember(tmp_path, made[0] / "moe-chat", files["chat"].entry.path)
    assert "of another form" in recall(files, tmp_path)[0].why
    (tmp_path / FILE_NAME).write_text("{half")
    (told,) = recall(files, tmp_path)
    assert "not valid JSON" in told.why
    assert files == before
