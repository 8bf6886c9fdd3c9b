"""The corpus: real, the same each time, never run, and honestly split."""

import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import InputError
from serving.small_models import text
from serving.small_models.documents import LONGEST_PIECE, documents, split
from serving.small_models.text import Corpus, Entry, read_corpus


@pytest.fixture(scope="module")
def corpus():
    """A part of the real library: all of it takes seconds to parse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "MODULES", ("argparse", "collections", "json", "threading", "typing"))
        return read_corpus()


def test_the_library_has_much_to_say(corpus):
    assert sum(len(entry.text) for entry in corpus.entries) > 400_000
    assert {entry.kind for entry in corpus.entries} == {"topic", "module", "class", "function"}
    by_name = {entry.name: entry.text for entry in corpus.entries}
    assert by_name["json.loads"].startswith("Deserialize ``s``")
    assert len(corpus.code) > 5_000
    assert not any(line.startswith("#") for line in corpus.code)


def test_no_paragraph_comes_twice_so_none_leaks(corpus):
    paragraphs = [part for entry in corpus.entries for part in entry.paragraphs]
    assert len(paragraphs) == len(set(paragraphs))
    pieces = split(corpus)
    seen = {part for piece in pieces.train for part in piece.paragraphs}
    assert not any(part in seen for piece in pieces.held_out for part in piece.paragraphs)
    assert 0.03 < len(pieces.held_out) / len(pieces.train) < 0.07


def test_every_module_is_there():
    found = {name.partition(".")[0] for name, _ in text._files(Path(sysconfig.get_path("stdlib")))}
    assert found == set(text.MODULES)


def test_the_same_text_each_time(library):
    assert read_corpus(library) == read_corpus(library)


def test_topics_come_by_name(library):
    assert [entry.name for entry in read_corpus(library).entries if entry.kind == "topic"] == ["a", "b"]


def test_modules_are_read_and_not_run(library, tmp_path, monkeypatch):
    (tmp_path / "pydoc_data").symlink_to(library / "pydoc_data")
    (tmp_path / "calendar.py").write_text('"""Says a great deal about days."""\nraise SystemExit("I was run")\n')
    monkeypatch.delitem(sys.modules, "calendar", raising=False)
    found = read_corpus(tmp_path)
    assert found.entries[-1] == Entry("module", "calendar", ("Says a great deal about days.",))
    assert found.code == ('raise SystemExit("I was run")',)
    assert "calendar" not in sys.modules


def test_wrapped_prose_becomes_one_line_and_code_stays(tmp_path):
    (tmp_path / "pydoc_data").mkdir()
    words = "A sentence that somebody broke into two lines because\nthe screen ended.\n\n   x = 1\n   y = 2\n"
    (tmp_path / "pydoc_data" / "topics.py").write_text(f"topics = {{'t': {words!r}}}")
    [entry] = read_corpus(tmp_path).entries
    assert entry.paragraphs == (
        "A sentence that somebody broke into two lines because the screen ended.",
        "   x = 1\n   y = 2",
    )


def test_a_library_without_topics_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"topics\.py"):
        read_corpus(tmp_path)


def test_a_library_of_any_size_is_refused(library, monkeypatch):
    monkeypatch.setattr(text, "MAX_TOTAL_BYTES", 1000)
    with pytest.raises(InputError, match="not a standard library"):
        read_corpus(library)


@given(
    st.lists(st.lists(st.text("abc \n", min_size=1, max_size=2 * LONGEST_PIECE), min_size=1, max_size=5), max_size=50)
)
def test_pieces_keep_every_paragraph_once(texts):
    entries = tuple(Entry("topic", str(place), tuple(parts)) for place, parts in enumerate(texts))
    pieces = split(Corpus(entries, ()))
    found = sorted(part for piece in (*pieces.train, *pieces.held_out) for part in piece.paragraphs)
    assert found == sorted(part for parts in texts for part in parts)
    for piece in (*pieces.train, *pieces.held_out):
        assert len(piece.paragraphs) == 1 or sum(map(len, piece.paragraphs)) <= LONGEST_PIECE


def test_the_seed_orders_the_documents(library):
    pieces = split(read_corpus(library)).train
    first = documents(pieces, 0, small_talk=True)
    assert first == documents(pieces, 0, small_talk=True)
    assert first != documents(pieces, 1, small_talk=True)
    assert all(document.endswith("<|endoftext|>") for document in first)
