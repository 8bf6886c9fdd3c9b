"""Making a trained causal language model, dense or with experts."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from serving.models.decoder import Decoder
from serving.small_models.balance import expert_loads, watch_routers
from serving.small_models.configs import generation_config, language_config
from serving.small_models.documents import END_OF_TEXT
from serving.small_models.language import Windows, next_token_loss, perplexity, unigram_perplexity
from serving.small_models.made import Made, model_files, new_model, parameter_count
from serving.small_models.material import Material, token_stream
from serving.small_models.settings import LanguageSettings
from serving.small_models.tokenizer import CHAT, json_bytes, tokenizer_files
from serving.small_models.training import OnStep, Schedule, train


def make_language_model(material: Material, settings: LanguageSettings, seed: int, on_step: OnStep) -> Made:
    tokenizer = material.tokenizer(CHAT, settings.vocabulary)
    pieces = material.pieces
    tokens = token_stream(tokenizer, pieces.train, seed, small_talk=True)
    held_out = token_stream(tokenizer, pieces.held_out, seed=0, small_talk=False)
    end = (CHAT.id_of("eos_token"), CHAT.tokens.index(END_OF_TEXT))
    pad = CHAT.id_of("pad_token")
    config = language_config(settings, tokenizer.get_vocab_size(), end, pad)
    generator = torch.Generator().manual_seed(seed)
    model = new_model(config, generator)
    assert isinstance(model, Decoder)
    losses = _train(model, Windows(tokens, settings.context, settings.batch, generator), settings, on_step)
    measures: dict[str, Any] = {
        "first_loss": losses[0],
        "last_loss": float(np.mean(losses[-10:])),
        "perplexity": perplexity(model, held_out, settings.context),
        "unigram_perplexity": unigram_perplexity(tokens, held_out, tokenizer.get_vocab_size()),
        "trained_tokens": settings.steps * settings.batch * settings.context,
        "text_tokens": len(tokens),
    }
    files = model_files(config, model)
    files |= tokenizer_files(tokenizer, CHAT, settings.max_positions)
    files["generation_config.json"] = json_bytes(generation_config(end, pad))
    if settings.experts:
        loads = expert_loads(model, held_out, settings.context)
        measures["expert_loads"] = [[round(share, 4) for share in layer] for layer in loads.tolist()]
        files["expert_loads.npz"] = _npz(loads)
    return Made(parameter_count(model), files, measures)


def _train(model: Decoder, windows: Windows, settings: LanguageSettings, on_step: OnStep) -> list[float]:
    schedule = Schedule(settings.steps, settings.learning_rate)
    if not settings.balance:
        return train(model, lambda step: next_token_loss(model, *windows.next()), schedule, on_step)
    with watch_routers(model) as watch:

        def loss_of(step: int) -> Tensor:
            return next_token_loss(model, *windows.next()) + settings.balance * watch.balance_loss()

        return train(model, loss_of, schedule, on_step)


def _npz(loads: Tensor) -> bytes:
    """As `penstock moe replicate` reads them."""
    buffer = io.BytesIO()
    np.savez(buffer, load=loads.numpy())
    return buffer.getvalue()
