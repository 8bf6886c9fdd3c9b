"""Making the trained BERTs: an embedder and a classifier."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer

from serving.models.encoder import Encoder
from serving.small_models.configs import bert_config
from serving.small_models.examples import LABELS, Pair, lines, neighbours
from serving.small_models.made import Made, model_files, new_model, parameter_count
from serving.small_models.material import Material
from serving.small_models.sentences import (
    Sequences,
    accuracy,
    cut,
    found_share,
    label_loss,
    pair_loss,
)
from serving.small_models.settings import BertSettings
from serving.small_models.tokenizer import BERT, tokenizer_files
from serving.small_models.training import OnStep, Schedule, train

T = TypeVar("T")


def make_embedder(material: Material, settings: BertSettings, seed: int, on_step: OnStep) -> Made:
    """Texts that stand beside each other in the documentation come to lie near each other."""
    tokenizer = material.tokenizer(BERT, settings.vocabulary)
    config = bert_config(settings, tokenizer.get_vocab_size(), BERT.id_of("pad_token"))
    model = _new_encoder(config, seed)
    pairs = list(zip(*_encode_pairs(tokenizer, neighbours(material.pieces.train), settings.context), strict=True))
    held_out = _encode_pairs(tokenizer, neighbours(material.pieces.held_out), settings.context)
    before = found_share(model, *held_out)
    batches = _batches(pairs, settings.batch, seed)

    def loss_of(step: int) -> torch.Tensor:
        batch = next(batches)
        return pair_loss(model, [first for first, _ in batch], [second for _, second in batch])

    losses = train(model, loss_of, Schedule(settings.steps, settings.learning_rate), on_step)
    measures = {
        "first_loss": losses[0],
        "last_loss": float(np.mean(losses[-10:])),
        "pairs": len(pairs),
        "held_out_pairs": len(held_out[0]),
        "found": found_share(model, *held_out),
        "found_untrained": before,
        "found_by_chance": 1 / len(held_out[0]),
    }
    # Hugging Face's BertModel has a pooler; a mean over tokens does not use it.
    pooler = {"pooler.dense.weight": torch.eye(settings.hidden), "pooler.dense.bias": torch.zeros(settings.hidden)}
    return _made(config, model, tokenizer, settings, measures, pooler)


def make_classifier(material: Material, settings: BertSettings, seed: int, on_step: OnStep) -> Made:
    """Lines of code are told from lines of prose."""
    tokenizer = material.tokenizer(BERT, settings.vocabulary)
    config = bert_config(settings, tokenizer.get_vocab_size(), BERT.id_of("pad_token"), LABELS)
    model = _new_encoder(config, seed)
    known, held_out = lines(material.corpus, material.pieces, seed)
    examples = list(zip(_encode(tokenizer, [line.text for line in known], settings.context), known, strict=True))
    batches = _batches(examples, settings.batch, seed)

    def loss_of(step: int) -> torch.Tensor:
        batch = next(batches)
        return label_loss(model, [ids for ids, _ in batch], torch.tensor([line.label for _, line in batch]))

    losses = train(model, loss_of, Schedule(settings.steps, settings.learning_rate), on_step)
    labels = torch.tensor([line.label for line in held_out])
    tokens = _encode(tokenizer, [line.text for line in held_out], settings.context)
    measures = {
        "first_loss": losses[0],
        "last_loss": float(np.mean(losses[-10:])),
        "lines": len(known),
        "held_out_lines": len(held_out),
        "accuracy": accuracy(model, tokens, labels),
        "accuracy_of_guessing": float(labels.bincount().max() / len(labels)),
    }
    return _made(config, model, tokenizer, settings, measures, {})


def _new_encoder(config: dict[str, Any], seed: int) -> Encoder:
    model = new_model(config, torch.Generator().manual_seed(seed))
    assert isinstance(model, Encoder)
    return model


def _made(
    config: dict[str, Any],
    model: Encoder,
    tokenizer: Tokenizer,
    settings: BertSettings,
    measures: dict[str, Any],
    more: dict[str, torch.Tensor],
) -> Made:
    files = model_files(config, model, more) | tokenizer_files(tokenizer, BERT, settings.max_positions)
    return Made(parameter_count(model), files, measures)


def _encode(tokenizer: Tokenizer, texts: list[str], longest: int) -> Sequences:
    return cut([encoding.ids for encoding in tokenizer.encode_batch(texts)], longest)


def _encode_pairs(tokenizer: Tokenizer, pairs: list[Pair], longest: int) -> tuple[Sequences, Sequences]:
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    return _encode(tokenizer, first, longest), _encode(tokenizer, second, longest)


def _batches(examples: Sequence[T], size: int, seed: int) -> Iterator[list[T]]:
    """All examples in a drawn order, then all again in another, without end."""
    draw = random.Random(seed)
    waiting: list[T] = []
    while True:
        while len(waiting) < size:
            waiting += draw.sample(examples, len(examples))
        yield waiting[:size]
        waiting = waiting[size:]
