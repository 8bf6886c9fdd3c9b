"""Models that are fetched where they are missing, once."""

from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from placement.errors import InputError
from serving.machines.fetch import fetch, fetch_all


@pytest.fixture
def store(tmp_path):
    model = tmp_path / "store" / "chat"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "sub" / "vocabulary.txt").write_text("a")
    (model / "model.bin").write_bytes(b"would be unpickled")
    return model


def test_it_is_fetched_once_and_without_what_would_be_unpickled(store, tmp_path):
    place = tmp_path / "node" / "models" / "chat"
    with ThreadPoolExecutor(4) as pool:
        fetched = list(pool.map(lambda _: fetch(f"file://{store}", place), range(4)))
    assert sorted(fetched) == [False, False, False, True]
    names = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", "sub/vocabulary.txt"}
    assert (place / "model.safetensors").read_bytes() == b"weights"
    assert fetch_all({str(place): "file:///nowhere"}) == []


def test_a_listing_that_leads_out_of_the_directory_is_refused(store, tmp_path, monkeypatch):
    """As a listing over HTTP may: links are passed on as they stand there."""
    (store.parent / "outside.json").write_text("{}")
    files = fsspec.filesystem("file")
    listed = [f"{store}/config.json", f"{store}/sub/../../outside.json"]
    monkeypatch.setattr(type(files), "find", lambda self, root: listed)
    place = tmp_path / "node" / "models" / "chat"
    with pytest.raises(InputError, match=r"lists sub/\.\./\.\./outside.json"):
        fetch(f"file://{store}", place)
    assert [path.name for path in tmp_path.rglob("outside.json")] == ["outside.json"]
    assert not place.exists()


@pytest.mark.parametrize(
    ("url", "says"), [("file:///nowhere/at/all", "no config.json"), ("nobody://knows", "nobody"), ("s4://b/c", "s4")]
)
def test_what_cannot_be_had_says_so_and_leaves_nothing(tmp_path, url, says):
    with pytest.raises(InputError, match=says):
        fetch(url, tmp_path / "chat")
    assert not (tmp_path / "chat").exists()
