"""Tokenizers: any text survives, and transformers reads them as we do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from serving.small_models.documents import END_OF_TEXT, dialogue, prompt
from serving.small_models.random import SMALLEST_VOCABULARY, _byte_tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)  # UTF-8 has no lone surrogates


@pytest.fixture(scope="module")
def ours(made):
    directory, _ = made
    found = {name: Tokenizer.from_file(str(directory / name / "tokenizer.json")) for name in ("chat", "embed")}
    return found | {"random": _byte_tokenizer(SMALLEST_VOCABULARY + 100)}


@pytest.fixture(scope="module")
def theirs(made):
    directory, _ = made
    return {name: AutoTokenizer.from_pretrained(directory / name) for name in ("chat", "moe-chat", "embed", "classify")}


@given(text=ANY_TEXT)
@pytest.mark.parametrize("name", ["chat", "embed", "random"])
def test_any_text_survives(ours, name, text):
    ids = ours[name].encode(text, add_special_tokens=False).ids
    assert ours[name].decode(ids, skip_special_tokens=False) == text


@given(text=ANY_TEXT)
@pytest.mark.parametrize("name", ["chat", "embed"])
def test_transformers_gives_the_same_tokens(ours, theirs, name, text):
    assert theirs[name](text)["input_ids"] == ours[name].encode(text).ids
    ids = ours[name].encode(text, add_special_tokens=False).ids
    assert theirs[name].decode(ids) == text


def test_the_chat_template_writes_what_the_model_was_trained_on(theirs):
    messages = [{"role": "user", "content": "Hello"}]
    for name in ("chat", "moe-chat"):
        rendered = theirs[name].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered == prompt("Hello")
        answered = [*messages, {"role": "assistant", "content": "Hello!"}]
        whole = theirs[name].apply_chat_template(answered, tokenize=False)
        assert whole + END_OF_TEXT == dialogue("Hello", "Hello!")


def test_an_answer_ends_at_the_end_tokens(made, theirs):
    directory, _ = made
    for file in ("config.json", "generation_config.json"):
        ends = json.loads((directory / "chat" / file).read_bytes())["eos_token_id"]
        assert theirs["chat"].convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]


def test_special_tokens_are_one_token_each(ours):
    assert ours["chat"].encode("<|im_start|><|im_end|><|endoftext|>").ids == [1, 2, 0]


def test_an_encoder_frames_its_text(theirs):
    encoded = theirs["classify"]("x", "y")
    assert theirs["classify"].convert_ids_to_tokens(encoded["input_ids"]) == ["[CLS]", "x", "[SEP]", "y", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1]


def test_every_token_of_a_random_model_can_be_written(ours):
    size = ours["random"].get_vocab_size()
    assert size == SMALLEST_VOCABULARY + 100
    assert ours["random"].decode([size - 1]) == f" w{size - 1}"
