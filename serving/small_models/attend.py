"""Who sees whom while training: sequences of one length lie one after another in the flat rows of a model."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from serving.models.decoder import Attend


def causal(sequences: int) -> Attend:
    """Each token sees itself and those before it in its sequence."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (_apart(part, sequences) for part in (query, key, value))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return seen.transpose(1, 2).reshape(query.shape)

    return attend


def padded(is_token: Tensor) -> Attend:
    """Each token sees all tokens of its sequence; is_token [sequences, time] is False where a row is padding."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (_apart(part, len(is_token)) for part in (query, key, value))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=is_token[:, None, None, :])
        return seen.transpose(1, 2).reshape(query.shape)

    return attend


def _apart(rows: Tensor, sequences: int) -> Tensor:
    """[sequences x time, heads, size] -> [sequences, heads, time, size]"""
    return rows.view(sequences, -1, *rows.shape[1:]).transpose(1, 2)
