"""Penalties, biases and bans applied to logits. The caller's logits stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.sampling.rows import LogitEdits


def apply_edits(logits: Tensor, edits: Sequence[LogitEdits]) -> Tensor:
    """Repetition, then frequency and presence, then bias, then bans; the same tensor when there are no edits."""
    if not edits:
        return logits
    edited = logits.clone()
    for edit in edits:
        row = edited[edit.row]
        _penalise_repetition(row, edit)
        _penalise_output(row, edit)
        if edit.bias_ids.size:
            row[_on(row, edit.bias_ids)] += torch.tensor(edit.bias, device=row.device)
        if edit.banned_ids.size:
            row[_on(row, edit.banned_ids)] = -torch.inf
    return edited


def _penalise_repetition(row: Tensor, edit: LogitEdits) -> None:
    if edit.repetition_penalty == 1:
        return
    seen = _on(row, np.concatenate((edit.prompt_ids, edit.output_ids)))
    logit = row.index_select(0, seen)
    # A token that is seen twice is written twice, with the same value.
    row.scatter_(0, seen, torch.where(logit > 0, logit / edit.repetition_penalty, logit * edit.repetition_penalty))


def _penalise_output(row: Tensor, edit: LogitEdits) -> None:
    if not edit.output_ids.size or (edit.presence_penalty == 0 and edit.frequency_penalty == 0):
        return
    seen = _on(row, edit.output_ids)
    times = torch.bincount(seen, minlength=len(row)).index_select(0, seen)
    penalty = edit.frequency_penalty * times + edit.presence_penalty
    row.scatter_(0, seen, row.index_select(0, seen) - penalty)


def _on(row: Tensor, ids: NDArray[np.int64]) -> Tensor:
    return torch.tensor(ids, device=row.device)
