"""An embedding model of any size with random weights, for measuring: a BERT that answers in one pass."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from serving.small_models.configs import bert_config
from serving.small_models.folder import put_folder
from serving.small_models.made import model_files, new_model
from serving.small_models.settings import BertSettings
from serving.small_models.tokenizer import BERT, tokenizer_files


def make_random_encoder(directory: Path, *, hidden: int, layers: int, heads: int, ffn: int, seed: int = 0) -> None:
    """Its vocabulary is all bytes."""
    settings = BertSettings(hidden=hidden, layers=layers, heads=heads, ffn=ffn)
    tokenizer = _byte_tokenizer()
    config = bert_config(settings, tokenizer.get_vocab_size(), BERT.id_of("pad_token"))
    model = new_model(config, torch.Generator().manual_seed(seed))
    pooler = {"pooler.dense.weight": torch.eye(hidden), "pooler.dense.bias": torch.zeros(hidden)}
    files = model_files(config, model, pooler) | tokenizer_files(tokenizer, BERT, settings.max_positions)
    put_folder(directory, files)


def _byte_tokenizer() -> Tokenizer:
    names = [*BERT.tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BERT.tokens])
    return tokenizer
