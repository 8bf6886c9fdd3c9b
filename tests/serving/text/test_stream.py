"""The text of a growing output: the decoded whole, cut at its first stop string, however its tokens come."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from serving.text import TextStream, Tokenizer
from serving.text.detokenize import BROKEN, WindowText
from serving.text.model_files import TextFiles
from tests.serving.text.test_stops import cut
from tests.serving.text.vocabularies import FAMILIES, SENTENCES, backend

BYTE_FALLBACK = ["byte-fallback", "byte-fallback-unstripped"]
BYTE_LEVEL = sorted(ByteLevel.alphabet())


@cache
def make(family):
    return Tokenizer(backend(family), TextFiles({}, (), {}), "test")


@st.composite
def outputs(draw, family):
    """Tokens as a model may give them: texts, single bytes, special and unknown tokens, or anything."""
    tokenizer = make(family)
    texts = st.sampled_from(SENTENCES).map(lambda text: tokenizer.encode(text, add_special_tokens=False)[:12])
    anything = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=6)
    few = st.lists(st.integers(0, 30), max_size=6)
    raw = st.binary(max_size=6).map(lambda data: byte_tokens(family, data))
    ids = [token for part in draw(st.lists(texts | anything | few | raw, max_size=6)) for token in part]
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=10)))
    return ids, [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def byte_tokens(family, data):
    """The vocabulary's tokens for single bytes, where it has them."""
    names = BYTE_LEVEL if family == "byte-level" else [f"<0x{byte:02X}>" for byte in range(256)]
    found = [backend(family).token_to_id(names[byte]) for byte in data]
    return [token for token in found if token is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_pushes_give_the_decoded_whole_cut_at_a_stop(family):
    tokenizer = make(family)

    @settings(max_examples=100, deadline=None)
    @given(outputs(family), st.data(), st.booleans(), st.booleans())
    def law(output, data, include, skip):
        ids, pushes = output
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        places = st.tuples(st.integers(0, max(0, len(whole) - 1)), st.integers(1, 4))
        inside = places.map(lambda place: whole[place[0] : place[0] + place[1]] or "zz")
        stops = data.draw(st.lists(inside | st.sampled_from(["the", " ", "er", BROKEN]), max_size=2))
        stream = TextStream(tokenizer, stops, include_stop=include, skip_special_tokens=skip)
        shown = "".join([stream.push(push) for push in pushes] + [stream.finish()])
        assert (shown, stream.stopped) == cut(whole, stops, include)

    law()


@pytest.mark.parametrize("family", FAMILIES)
def test_real_text_comes_without_delay_and_without_broken_characters(family):
    tokenizer = make(family)
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence, add_special_tokens=False)
        stream = TextStream(tokenizer)
        shown = ""
        for at, token in enumerate(ids, 1):
            shown += stream.push([token])
            assert BROKEN not in shown
            so_far = tokenizer.decode(ids[:at])
            # A run of byte tokens may wait for its end; half of a character must.
            if not so_far.endswith(BROKEN) and not (family in BYTE_FALLBACK and is_byte(family, token)):
                assert shown == so_far
        assert shown + stream.finish() == tokenizer.decode(ids)


def is_byte(family, token):
    return backend(family).id_to_token(token).startswith("<0x")


@pytest.mark.parametrize("family", ["unigram", "byte-fallback"])
def test_an_output_that_continues_a_prompt_keeps_its_first_space(family):
    tokenizer = make(family)
    prompt = tokenizer.encode("The river 🦆", add_special_tokens=False)  # byte tokens, where there are any
    output = tokenizer.encode("turns the wheel", add_special_tokens=False)
    fresh, going_on = TextStream(tokenizer), TextStream(tokenizer, context=prompt)
    assert fresh.push(output) + fresh.finish() == "turns the wheel"
    assert going_on.push(output) + going_on.finish() == " turns the wheel"


def test_a_stop_string_across_tokens_is_never_shown_in_part():
    tokenizer = make("byte-level")
    stream = TextStream(tokenizer, ["wheel turns"])
    shown = [stream.push([token]) for token in tokenizer.encode(SENTENCES[0])]
    assert "".join(shown) == "The river turns the wheel, and the "
    assert stream.stopped == "wheel turns"
    assert stream.finish() == ""


def test_a_window_stays_small_however_long_or_broken_the_output():
    seen = []

    def decode(ids):
        seen.append(len(ids))
        return "".join(BROKEN if token % 2 else chr(97 + token % 26) for token in ids)

    ids = [*range(200), *[1] * 500]
    window = WindowText(decode, lambda token: "shown")
    shown = "".join([window.push([token]) for token in ids] + [window.finish()])
    assert shown == decode(ids)
    assert max(seen[:-1]) < 40


def test_skipped_tokens_are_no_context():
    tokenizer = make("word-piece")
    hello, world, separator = 7592, 2088, 102
    stream = TextStream(tokenizer)
    pushes = [[hello], *[[separator]] * 20, [world]]
    assert "".join(map(stream.push, pushes)) == "hello world"


def test_token_bytes_join_to_the_text():
    for family in ("byte-level", "byte-fallback-unstripped"):
        tokenizer = make(family)
        for sentence in SENTENCES:
            ids = tokenizer.encode(sentence, add_special_tokens=False)
            assert b"".join(map(tokenizer.token_bytes, ids)).decode() == sentence
    assert make("word-piece").token_bytes(7592) == b"hello"
