"""Log-probabilities of chosen and likeliest tokens under the model's own distribution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.sampling.results import TokenLogprobs

LEAST = -9999.0
"""Reported for a probability of 0, whose logarithm JSON cannot write."""


def token_logprobs(logits: Tensor, tokens: NDArray[np.int64], counts: NDArray[np.int64]) -> list[TokenLogprobs]:
    """For each row of logits [rows, vocab]: the chosen token's and the `counts[row]` likeliest."""
    logprobs = torch.log_softmax(logits, -1).clamp(min=LEAST)
    chosen = logprobs.gather(1, torch.from_numpy(tokens).to(logits.device)[:, None])[:, 0].tolist()
    # One more than asked for shows whether equal ones are left out.
    most = min(int(counts.max()) + 1, logits.shape[1])
    values, ids = (top.cpu().numpy() for top in logprobs.topk(most))
    results = []
    for row, count in enumerate(counts.tolist()):
        count = min(count, logits.shape[1])
        likeliest, at = values[row], ids[row]
        if 0 < count < most and likeliest[count - 1] == likeliest[count]:
            at = (logprobs[row] >= float(likeliest[count])).nonzero()[:, 0].cpu().numpy()
            likeliest = logprobs[row].cpu().numpy()[at]
        order = np.lexsort((at, -likeliest))[:count]
        results.append(TokenLogprobs(chosen[row], at[order].tolist(), likeliest[order].tolist()))
    return results
