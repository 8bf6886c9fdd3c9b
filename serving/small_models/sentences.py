"""Texts of different lengths as one batch of an encoder, and the two things trained on them: to tell which texts
belong together, and which label a text has.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from serving.models.encoder import Encoder
from serving.small_models.attend import padded

TEXTS_AT_ONCE = 64
TEMPERATURE = 0.05
"""Of the softmax over similarities, which lie in [-1, 1]."""

Sequences = list[list[int]]
"""Token ids of each text."""


def cut(sequences: Sequences, longest: int) -> Sequences:
    """Texts shortened to `longest` tokens; the last, which closes a text, stays."""
    return [ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in sequences]


def answers(model: Encoder, sequences: Sequences) -> Tensor:
    """One row a text: its embedding, or its scores of each label. Differentiable."""
    lengths = torch.tensor([len(ids) for ids in sequences])
    time = int(lengths.max())
    tokens = torch.tensor([[*ids, *[0] * (time - len(ids))] for ids in sequences])
    is_token = torch.arange(time)[None, :] < lengths[:, None]
    positions = torch.arange(time).repeat(len(sequences))
    hidden = model(tokens.flatten(), positions, padded(is_token))
    starts = F.pad(lengths.cumsum(dim=0), (1, 0))
    return model.answer(hidden[is_token.flatten()], starts)


def all_answers(model: Encoder, sequences: Sequences) -> Tensor:
    """The same for any number of texts, without gradients."""
    parts = [sequences[start : start + TEXTS_AT_ONCE] for start in range(0, len(sequences), TEXTS_AT_ONCE)]
    with torch.inference_mode():
        return torch.cat([answers(model, part) for part in parts])


def pair_loss(model: Encoder, first: Sequences, second: Sequences) -> Tensor:
    """Each text shall be nearer to its own partner than to those of the others in the batch, in both directions."""
    both = answers(model, first + second)
    similarity = both[: len(first)] @ both[len(first) :].T / TEMPERATURE
    own = torch.arange(len(first))
    return (F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)) / 2


def label_loss(model: Encoder, sequences: Sequences, labels: Tensor) -> Tensor:
    return F.cross_entropy(answers(model, sequences), labels)


def found_share(model: Encoder, first: Sequences, second: Sequences) -> float:
    """How often a text's own partner is the nearest of all partners."""
    similarity = all_answers(model, first) @ all_answers(model, second).T
    return float((similarity.argmax(dim=1) == torch.arange(len(first))).float().mean())


def accuracy(model: Encoder, sequences: Sequences, labels: Tensor) -> float:
    return float((all_answers(model, sequences).argmax(dim=1) == labels).float().mean())
