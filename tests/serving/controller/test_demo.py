"""What `penstock up` sets up, and what it tells the user."""

import io
import shutil

import pytest

from placement.errors import InputError
from serving.config import read_serve_config
from serving.controller import demo
from serving.controller.progress import Progress
from serving.small_models.names import NAMES
from tests.serving.small_models.tiny import tiny_settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory, made):
    """Where the small models are already."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copytree(made[0], folder / "models")
    return folder


def test_its_configuration_and_what_to_paste(folder, monkeypatch):
    monkeypatch.setattr(demo, "_make_models", lambda directory, on_progress: None)
    config = read_serve_config(demo.make_demo(folder, "127.0.0.1:8321", lambda *_: None))
    assert [model.name for model in config.models] == list(NAMES)
    assert config.address.port == 8321
    text = demo.usage_text("http://127.0.0.1:8321", config)
    assert "curl http://127.0.0.1:8321/v1/chat/completions" in text
    assert '"model":"chat"' in text
    assert "curl http://127.0.0.1:8321/v1/embeddings" in text
    assert 'OpenAI(base_url="http://127.0.0.1:8321/v1"' in text


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        demo.make_demo(tmp_path / "file", "127.0.0.1:0", lambda *_: None)


def test_a_model_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"chat.*--force"):
        demo._make_one(tmp_path, "chat", lambda *_: None)


def test_progress_without_a_terminal_is_a_line_now_and_then():
    stream = io.StringIO()
    with Progress(stream) as progress:
        for share in (0.0, 0.1, 0.2, 1.0):
            progress("making chat", share, "loss 3")
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[-2:] for line in lines] == [["making chat: 0%", "loss 3"], ["making chat: 100%", "loss 3"]]


def test_what_is_there_is_not_made_again(folder, monkeypatch):
    monkeypatch.setattr(demo, "SETTINGS", tiny_settings())
    monkeypatch.setattr(demo, "_run", lambda *_: pytest.fail("nothing is to be made or compiled"))
    demo._make_models(folder / "models", lambda *_: None)
    (folder / "models" / "embed" / "config.json").write_text("{}")
    made = []
    monkeypatch.setattr(demo, "_run", lambda command, on_line: made.append(command[-1]))
    demo._make_models(folder / "models", lambda *_: None)
    assert sorted(made) == ["embed", "serving.controller.warm"]
