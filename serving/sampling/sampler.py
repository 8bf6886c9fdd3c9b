"""Choosing every row's next token from its logits. Keeps no state and no generator: the same row gives the same token
alone and in any batch. Order: penalties and bias, temperature, top-k, top-p (of what top-k left), min-p (relative to
the likeliest token after temperature); log-probabilities are those before all of it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.sampling.draw import draw
from serving.sampling.edits import apply_edits
from serving.sampling.logprobs import token_logprobs
from serving.sampling.results import Sampled, TokenLogprobs
from serving.sampling.rows import SamplingRows


@torch.inference_mode()
def sample(logits: Tensor, rows: SamplingRows) -> Sampled:
    """A token for each row of float32 logits [rows, vocab], which stay as they are."""
    assert logits.dtype == torch.float32
    assert logits.shape[0] == len(rows.temperature)
    edited = apply_edits(logits, rows.edits)
    tokens = _likeliest(edited)
    top = edited.gather(1, torch.from_numpy(tokens).to(logits.device)[:, None])[:, 0]
    failed: NDArray[np.bool_] = ~np.isfinite(top.cpu().numpy())
    drawn = np.flatnonzero(~rows.greedy & ~failed)
    if drawn.size:
        tokens[drawn] = draw(edited, rows, drawn)
    tokens[failed] = 0
    return Sampled(tokens, failed, _logprobs(logits, tokens, failed, rows))


def _likeliest(logits: Tensor) -> NDArray[np.int64]:
    """The first of the largest logits; NaN counts as larger than any."""
    # numpy's runs 10 times as fast as torch's on a CPU.
    found: NDArray[np.int64] = (
        logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1).cpu().numpy()
    )
    return found


def _take(logits: Tensor, rows: NDArray[np.intp]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]


def _logprobs(
    logits: Tensor, tokens: NDArray[np.int64], failed: NDArray[np.bool_], rows: SamplingRows
) -> tuple[TokenLogprobs | None, ...] | None:
    if (rows.logprobs < 0).all():
        return None
    asked = np.flatnonzero((rows.logprobs >= 0) & ~failed)
    results: list[TokenLogprobs | None] = [None] * len(tokens)
    if asked.size:
        found = token_logprobs(_take(logits, asked), tokens[asked], rows.logprobs[asked])
        for row, logprobs in zip(asked.tolist(), found, strict=True):
            results[row] = logprobs
    return tuple(results)
