"""Reading a model's directory: what each file decides, and the line that names a damaged one."""

import json

import pytest

from placement.errors import InputError
from serving.text import Tokenizer
from tests.serving.text.vocabularies import MINILM, backend


@pytest.fixture
def directory(tmp_path):
    backend("byte-level").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(directory, name, content):
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_an_embedders_tokenizer():
    """Its file asks for truncation and padding to 128 tokens; neither is done."""
    tokenizer = Tokenizer.from_directory(MINILM)
    assert tokenizer.vocab_size == 30522
    assert tokenizer.encode("Hello world") == [101, 7592, 2088, 102]
    assert tokenizer.encode("Hello world", add_special_tokens=False) == [7592, 2088]
    assert len(tokenizer.encode("hello " * 500)) == 502
    assert tokenizer.decode([101, 7592, 2088, 102]) == "hello world"
    assert tokenizer.decode([101, 7592, 102], skip_special_tokens=False) == "[CLS] hello [SEP]"
    assert tokenizer.eos_token_ids == ()
    assert not tokenizer.has_chat_template


def test_text_comes_back(directory):
    tokenizer = Tokenizer.from_directory(directory)
    for text in ("", "The wheel", "  two  spaces ", "水🙂é\n", "<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b")) == "ab"


def test_every_end_that_the_files_name_ends_an_output(directory):
    write(directory, "config.json", {"eos_token_id": 7})
    assert Tokenizer.from_directory(directory).eos_token_ids == (7,)
    write(directory, "generation_config.json", {"eos_token_id": [2, 5]})
    assert Tokenizer.from_directory(directory).eos_token_ids == (2, 5)
    write(directory, "special_tokens_map.json", {"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.eos_token_ids == (2, 5, 1)
    assert tokenizer.bos_token_id == 0
    write(directory, "tokenizer_config.json", {"eos_token": "<|im_end|>", "model_max_length": 10**30})
    assert Tokenizer.from_directory(directory).eos_token_ids == (2, 5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", {"model": {"type": "None"}}),
        ("tokenizer_config.json", "{nonsense"),
        ("tokenizer_config.json", [1]),
        ("tokenizer_config.json", {"eos_token": 5}),
        ("tokenizer_config.json", {"eos_token": "<nowhere>"}),
        ("tokenizer_config.json", {"chat_template": 5}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}),
        ("special_tokens_map.json", "\x00"),
        ("generation_config.json", {"eos_token_id": "2"}),
        ("generation_config.json", {"eos_token_id": [2, True]}),
        ("config.json", {"eos_token_id": -1}),
        ("chat_template.json", "["),
    ],
)
def test_a_damaged_file_is_named_in_one_line(directory, name, content):
    write(directory, name, content)
    with pytest.raises(InputError) as refused:
        Tokenizer.from_directory(directory)
    assert name in str(refused.value)
    assert str(directory) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_damaged_template_is_named_with_its_line(directory):
    write(directory, "chat_template.jinja", "{{ bos_token }}\n{% for m in messages %}")
    with pytest.raises(InputError, match="chat template default, line 2: "):
        Tokenizer.from_directory(directory)
    (directory / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"chat_template.jinja: not valid UTF-8"):
        Tokenizer.from_directory(directory)


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer.json: missing"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(InputError, match=r"tokenizer.json: cannot be read"):
        Tokenizer.from_directory(tmp_path)


def test_half_of_a_surrogate_pair_is_refused(directory):
    with pytest.raises(InputError, match="not valid Unicode"):
        Tokenizer.from_directory(directory).encode("a\ud800b")
