"""Making: the same each time, what is whole stays, what is broken off is nothing."""

import json
import os

import msgspec
import pytest

from placement.errors import InputError
from serving.small_models import folder as folder_module
from serving.small_models.folder import put_folder
from serving.small_models.make import make_models
from serving.small_models.manifest import read_manifest

LAYOUT = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} | {
    "special_tokens_map.json",
    "README.md",
    "penstock.json",
}


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def make(tmp_path, library, tiny):
    """Make the quickest of the models."""

    def call(**changes):
        [outcome] = make_models(tmp_path, ["classify"], library=library, **{"settings": tiny, "steps": 2} | changes)
        return outcome

    return call


def test_the_layout(made):
    directory, outcomes = made
    assert list(outcomes) == ["chat", "moe-chat", "embed", "classify"]
    for name, outcome in outcomes.items():
        extra = {"generation_config.json"} if "chat" in name else set()
        extra |= {"expert_loads.npz"} if name == "moe-chat" else set()
        assert {path.name for path in (directory / name).iterdir()} == LAYOUT | extra
        assert outcome.made
        assert outcome.manifest == read_manifest(directory / name)
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("name", "share"), [("chat", 0.95), ("moe-chat", 0.95), ("embed", 1), ("classify", 1)])
def test_training_teaches(made, name, share):
    measures = made[1][name].manifest.measures
    assert measures["last_loss"] < share * measures["first_loss"]


def test_the_same_seed_makes_the_same_files(made, tmp_path, library, tiny):
    directory, _ = made
    make_models(tmp_path / "again", settings=tiny, library=library)
    assert contents(tmp_path / "again") == contents(directory)
    make_models(tmp_path / "other", ["chat"], settings=tiny, library=library, seed=1)
    weights = "chat/model.safetensors"
    assert contents(tmp_path / "other")[weights] != contents(directory)[weights]


def test_what_is_whole_stays(make, tmp_path):
    assert make().made
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = make()
    assert not again.made
    assert again.seconds == again.cpu_seconds == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_other_settings_want_force(make):
    make()
    for change in ({"seed": 1}, {"steps": 3}):
        with pytest.raises(InputError, match=r"other settings .*--force"):
            make(**change)
    outcome = make(steps=3, force=True)
    assert outcome.made
    assert outcome.manifest.steps == 3


def test_what_was_changed_or_lost_wants_force(make, tmp_path):
    for spoil, reason in (
        (lambda path: path.write_text("{}"), "config.json was changed"),
        (lambda path: path.unlink(), "config.json is missing"),
    ):
        make(force=True)
        spoil(tmp_path / "classify" / "config.json")
        with pytest.raises(InputError, match=f"{reason}.*--force"):
            make()
    assert make(force=True).made


def test_a_manifest_of_another_version_is_not_taken_for_ours(make, tmp_path):
    make()
    path = tmp_path / "classify" / "penstock.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 2}))
    with pytest.raises(InputError, match="version 2"):
        make()


def test_a_model_from_elsewhere_wants_force_and_other_folders_are_never_replaced(make, tmp_path):
    folder = tmp_path / "classify"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="not made here"):
        make()
    (folder / "photos").mkdir()
    with pytest.raises(InputError, match="not the directory of a model"):
        make(force=True)
    (folder / "photos").rmdir()
    assert make(force=True).made


def test_nothing_is_made_when_one_cannot_be(make, tmp_path, library, tiny):
    (tmp_path / "classify").mkdir()
    (tmp_path / "classify" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="classify"):
        make_models(tmp_path, settings=tiny, library=library)
    assert [path.name for path in tmp_path.iterdir()] == ["classify"]


def test_a_run_stopped_while_training_leaves_nothing(make, tmp_path):
    def stop(name, share, note):
        if share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(on_progress=stop)
    assert not list(tmp_path.iterdir())
    assert make().made


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("after", range(6))
def test_a_run_stopped_while_writing_leaves_the_old_or_nothing(tmp_path, monkeypatch, after, there):
    """Five operations: three files, the old folder out of the way, the new into place."""
    if after == 5 and not there:
        pytest.skip("one operation fewer without an old folder")
    old, new = {"a": b"1", "b": b"2", "c": b"3"}, {"a": b"4", "b": b"5", "c": b"6"}
    if there:
        put_folder(tmp_path / "m", old)
    done = 0

    def stopping(operation):
        def call(*arguments):
            nonlocal done
            if done == after:
                done += 1
                raise KeyboardInterrupt
            done += 1
            operation(*arguments)

        return call

    monkeypatch.setattr(folder_module, "replace_file", stopping(folder_module.replace_file))
    monkeypatch.setattr(folder_module.os, "rename", stopping(os.rename))
    last = 4 if there else 3
    if after <= last:
        with pytest.raises(KeyboardInterrupt):
            put_folder(tmp_path / "m", new)
        assert contents(tmp_path) == ({f"m/{name}": content for name, content in old.items()} if there else {})
    else:
        put_folder(tmp_path / "m", new)
        assert contents(tmp_path) == {f"m/{name}": content for name, content in new.items()}


def test_a_place_that_cannot_be_written_is_one_line(library, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        make_models(tmp_path / "file", ["classify"], settings=tiny, library=library, steps=1)


def test_settings_and_seed_are_what_tells_models_apart(tiny):
    from serving.small_models.settings import digest

    settings = tiny["chat"]
    assert digest(settings, 0) == digest(msgspec.structs.replace(settings), 0)
    others = {digest(settings, 1), digest(msgspec.structs.replace(settings, hidden=64), 0), digest(tiny["embed"], 0)}
    assert len(others | {digest(settings, 0)}) == 4
