"""A language model of any size with random weights: as fast and as large as a real one, and knowing nothing.

For measuring speed. Its tokenizer takes text byte by byte; every other token of the vocabulary reads ` w` and its
number, so that whatever the model answers can be written down.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from placement.errors import InputError
from serving.models.config import parse_config
from serving.small_models.configs import generation_config, language_config
from serving.small_models.folder import check_replaceable, is_empty, put_folder
from serving.small_models.made import model_files, new_model, parameter_count
from serving.small_models.settings import LanguageSettings
from serving.small_models.tokenizer import CHAT, json_bytes, tokenizer_files

SMALLEST_VOCABULARY = 256 + len(CHAT.tokens)


def make_random(
    directory: Path,
    *,
    hidden: int = 768,
    layers: int = 12,
    heads: int = 12,
    kv_heads: int | None = None,
    ffn: int = 2048,
    vocabulary: int = 32000,
    experts: int = 0,
    top_k: int = 2,
    max_positions: int = 2048,
    tied: bool = True,
    seed: int = 0,
) -> int:
    """Write a Llama (with experts: a Qwen3-MoE) in place of the model at `directory`; its number of parameters.

    It never ends an answer by itself more often than chance has it; ask with a limit of tokens.
    """
    if vocabulary < SMALLEST_VOCABULARY:
        raise InputError(
            f"a vocabulary of {vocabulary}: at least {SMALLEST_VOCABULARY} tokens are needed for all bytes"
        )
    if hidden % heads or (hidden // heads) % 2:
        raise InputError(f"{hidden} hidden with {heads} heads: heads must be of equal, even size")
    if not is_empty(directory):
        check_replaceable(directory)
    settings = LanguageSettings(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        ffn=ffn,
        experts=experts,
        top_k=top_k if experts else 0,
        max_positions=max_positions,
        tied=tied,
    )
    end, pad = (CHAT.id_of("eos_token"),), CHAT.id_of("pad_token")
    config = language_config(settings, vocabulary, end, pad)
    parse_config(config, str(directory))
    model = new_model(config, torch.Generator().manual_seed(seed))
    files = model_files(config, model) | tokenizer_files(_byte_tokenizer(vocabulary), CHAT, max_positions)
    files["generation_config.json"] = json_bytes(generation_config(end, pad))
    put_folder(directory, files)
    return parameter_count(model)


def _byte_tokenizer(size: int) -> Tokenizer:
    names = [*CHAT.tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"Ġw{number}" for number in range(len(names), size)]  # Ġ is a space, as byte-level tokenizers write it
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CHAT.tokens])
    return tokenizer
