"""What is wrong with an `lm` job is said in one line, before or when it starts."""

import numpy as np
import pytest

from placement.errors import InputError
from training.elastic import read_spec
from training.elastic.spec import check_readable
from training.elastic.tokens import open_tokens, prepare_tokens

RIGHT = {"model": "/m", "data": "/d", "steps": 10}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": 6, "micro_batch": 4}, "a batch of 6 cannot be cut into micro-batches of 4"),
        ({"batch": 8192}, "8192 micro-batches in a step; 4096 is the most"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"warmup": "120%"}, "warmup 1.2"),
        ({"checkpoint": 0}, "checkpoint 0"),
        ({"pace": "2h"}, "pace 7200"),
        ({"seed": 2**63}, "seed"),
        ({"colour": "red"}, "colour"),
        ({"steps": None}, "steps"),
    ],
)
def test_wrong_words(change, said):
    with pytest.raises(InputError, match=r"^lm: [^\n]*$") as refused:
        read_spec(RIGHT | change)
    assert said in str(refused.value)


def test_units_and_defaults():
    spec = read_spec(RIGHT | {"checkpoint": "2min", "batch": 8, "micro_batch": 2, "warmup": "5%"})
    assert (spec.checkpoint, spec.parts, spec.warmup, spec.fresh) == (120, 4, 0.05, False)


def test_files_are_read_below_the_roots_alone(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "text").write_text("a")
    (inside / "link").symlink_to(outside / "text")
    roots = (str(inside),)
    assert check_readable(str(inside / "text"), roots) == inside / "text"
    assert check_readable(str(outside / "text"), ()) == outside / "text"
    for path in (outside / "text", inside / "link", inside / ".." / "out" / "text"):
        with pytest.raises(InputError, match="alone"):
            check_readable(str(path), roots)
    with pytest.raises(InputError, match="no such file"):
        check_readable(str(inside / "none"), roots)
    with pytest.raises(InputError, match="relative"):
        check_readable("text", ())


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (np.zeros((2, 50), np.int32), "one dimension"),
        (np.zeros(50), "whole numbers"),
        (np.zeros(8, np.int32), "8 tokens; a sequence of 8 needs 9"),
        (np.full(50, 300), "the model has 0 to 299"),
        (np.full(50, -1), "tokens from -1"),
        (np.array([{}]), "not a .npy file"),
    ],
)
def test_tokens_that_are_none(tmp_path, tokens, said):
    np.save(tmp_path / "t.npy", tokens)
    with pytest.raises(InputError, match=said):
        open_tokens(tmp_path / "t.npy", 300, 8)


def test_a_text_is_turned_into_tokens_once(world, tmp_path):
    path = prepare_tokens(world / "text.txt", world / "base", tmp_path)
    made = path.stat().st_mtime_ns
    assert prepare_tokens(world / "text.txt", world / "base", tmp_path).stat().st_mtime_ns == made
    assert len(open_tokens(path, 300, 8)) == len((world / "text.txt").read_bytes())  # its tokenizer takes bytes
    (tmp_path / "bad").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        prepare_tokens(tmp_path / "bad", world / "base", tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not a tokenizer"):
        prepare_tokens(world / "text.txt", tmp_path, tmp_path / "elsewhere")
