"""Drawing tokens by inverse CDF: one number in [0, 1) a row picks its token, so that neither the batch nor a device's
generator has a say. Rows are processed a few at a time, so that what they need stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.sampling.rows import SamplingRows

CANDIDATES = 128
"""Likeliest tokens looked at first; a row that needs more is sorted as a whole."""
_CHUNK_ELEMENTS = 2**18


def draw(logits: Tensor, rows: SamplingRows, drawn: NDArray[np.intp]) -> NDArray[np.int64]:
    """Token ids for the rows `drawn` of logits [rows, vocab]; each has a finite largest logit."""
    vocab = logits.shape[1]
    ordered = ((rows.top_k > 0) & (rows.top_k < vocab)) | (rows.top_p < 1)
    tokens = np.zeros(len(logits), np.int64)
    _draw_group(tokens, logits, rows, drawn[~ordered[drawn]], _draw_unordered)
    _draw_group(tokens, logits, rows, drawn[ordered[drawn]], _draw_ordered)
    return tokens[drawn]


@dataclass(frozen=True)
class _Filters:
    """Columns [rows] on the logits' device."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor

    def take(self, rows: Tensor) -> _Filters:
        return _Filters(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniform[rows]
        )


def _draw_group(
    tokens: NDArray[np.int64],
    logits: Tensor,
    rows: SamplingRows,
    group: NDArray[np.intp],
    draw_rows: Callable[[Tensor, _Filters], Tensor],
) -> None:
    step = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    columns = (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.uniform)
    for start in range(0, len(group), step):
        part = group[start : start + step]
        filters = _Filters(*(torch.from_numpy(column[part]).to(logits.device) for column in columns))
        tokens[part] = draw_rows(_take(logits, part), filters).cpu().numpy()


def _take(logits: Tensor, rows: NDArray[np.intp]) -> Tensor:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return logits[first : last + 1]
    return logits.index_select(0, torch.from_numpy(rows).to(logits.device))


def _draw_unordered(logits: Tensor, filters: _Filters) -> Tensor:
    """Temperature and min_p alone: in the order of ids."""
    probability = _probability(logits, filters)
    if (filters.min_p > 0).any():
        least = filters.min_p[:, None].float() * probability.amax(-1, keepdim=True)
        probability.masked_fill_(probability < least, 0)
    sums = probability.cumsum(-1, dtype=torch.float64)
    return _passing(sums, sums[:, -1], filters.uniform)


def _draw_ordered(logits: Tensor, filters: _Filters) -> Tensor:
    """In descending order of logits, equal ones by id: among candidates if they are sure to suffice."""
    size = min(CANDIDATES, logits.shape[1])
    whole = size == logits.shape[1]
    probability = _probability(logits, filters)
    flat = (filters.top_k == 0) & (filters.min_p == 0) & (size * probability.amax(-1) < filters.top_p)
    if not whole and (flat | (filters.top_k >= size)).all():
        return _draw_sorted(logits, filters)
    values, ids = logits.topk(size)
    place, complete = _place(values, probability.gather(1, ids), filters, whole=whole)
    tokens = ids.gather(1, place[:, None])[:, 0]
    tied = (values == values.gather(1, place[:, None])).sum(-1) > 1
    for row in (tied & complete).nonzero()[:, 0].tolist():
        tokens[row] = _id_at(int(place[row]), values[row], logits[row])
    rest = (~complete).nonzero()[:, 0]
    if len(rest):
        tokens[rest] = _draw_sorted(logits.index_select(0, rest), filters.take(rest))
    return tokens


def _draw_sorted(logits: Tensor, filters: _Filters) -> Tensor:
    """As _draw_ordered, over the whole vocabulary."""
    values = _descending(logits)
    place, _ = _place(values, _probability(values, filters), filters, whole=True)
    tokens = [_id_at(*row) for row in zip(place.tolist(), values, logits, strict=True)]
    return torch.tensor(tokens, device=logits.device)


def _place(values: Tensor, mass: Tensor, filters: _Filters, *, whole: bool) -> tuple[Tensor, Tensor]:
    """Where [rows] in descending values [rows, n] the row's number falls among the tokens that top-k, top-p and min-p
    keep (each keeps the first so many), and whether [rows] none beyond the n would be kept. Tokens as likely as the
    k-th are all kept; the token that reaches top_p is kept. `mass` [rows, n]: shares of the whole vocabulary."""
    size = values.shape[1]
    sums = mass.cumsum(-1, dtype=torch.float64)
    limited = filters.top_k > 0
    kept = torch.full_like(filters.top_k, size)
    total = sums[:, -1:] if whole else torch.ones_like(sums[:, -1:])
    if limited.any():
        last = values.gather(1, filters.top_k.clamp(1, size)[:, None] - 1)
        kept = torch.where(limited, (values >= last).sum(-1), size)
        total = torch.where(limited[:, None], sums.gather(1, kept[:, None] - 1), total)
    known = ~limited | (kept < size)
    top_p = torch.searchsorted(sums, filters.top_p[:, None] * total)[:, 0] + 1
    kept = torch.where(filters.top_p < 1, torch.minimum(kept, top_p), kept)
    if (filters.min_p > 0).any():
        least = filters.min_p[:, None].float() * mass[:, :1]
        kept = torch.minimum(kept, (mass >= least).sum(-1))
    complete = torch.ones_like(known) if whole else known & (kept < size)
    return _passing(sums, sums.gather(1, kept[:, None] - 1)[:, 0], filters.uniform), complete


def _passing(sums: Tensor, total: Tensor, uniform: Tensor) -> Tensor:
    """The first index [rows] at which ascending sums [rows, n] pass uniform x total: one that adds to the sum."""
    # A float64 below 1 is at most 1 - 2^-53; its product with a total rounds to less than the total, which is passed.
    return torch.searchsorted(sums, (uniform * total)[:, None], right=True)[:, 0]


def _probability(logits: Tensor, filters: _Filters) -> Tensor:
    # Less the largest first: a small temperature must not push it to infinity.
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(filters.temperature[:, None])
    return torch.softmax(scaled, -1)


def _descending(logits: Tensor) -> Tensor:
    if logits.device.type != "cpu":
        return logits.sort(-1, descending=True).values
    # numpy sorts floats with vector instructions: 9 times as fast as torch, which sorts indices along.
    return torch.from_numpy(np.sort(logits.numpy())[:, ::-1].copy())


def _id_at(place: int, values: Tensor, logits: Tensor) -> int:
    """The id of what stands at `place` in descending values, when equal logits stand in the order of their ids."""
    value = values[place]
    larger, equal = values > value, logits == value
    if logits.device.type == "cpu":  # numpy counts and finds 8 times as fast
        return int(np.flatnonzero(equal.numpy())[place - np.count_nonzero(larger.numpy())])
    return int(equal.nonzero()[place - int(larger.sum()), 0])
