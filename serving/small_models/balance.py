"""How evenly tokens go to experts, seen from outside: routers are watched by hooks, the model knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe.balance_loss import balance_loss
from serving.models.decoder import Decoder, Experts
from serving.small_models.attend import causal

TOKENS_AT_ONCE = 4096


class RouterWatch:
    """The scores of the last forward pass, [tokens, experts] for each layer with experts."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self._scores: dict[int, Tensor] = {}

    def note(self, layer: int, scores: Tensor) -> None:
        self._scores[layer] = scores

    def balance_loss(self) -> Tensor:
        """The mean over layers."""
        return torch.stack([balance_loss(scores, self._choices(scores)) for scores in self._scores.values()]).mean()

    def counts(self) -> Tensor:
        """[layers, experts]: how often each was chosen."""
        return torch.stack(
            [self._choices(scores).flatten().bincount(minlength=scores.shape[1]) for scores in self._scores.values()]
        ).float()

    def _choices(self, scores: Tensor) -> Tensor:
        """[tokens, top_k]"""
        return scores.detach().topk(self.top_k, dim=-1).indices


@contextmanager
def watch_routers(model: Decoder) -> Iterator[RouterWatch]:
    """Watch while the block runs."""
    watch = RouterWatch(model.config.sizes.top_k)
    blocks = [layer.feedforward for layer in model.layers if isinstance(layer.feedforward, Experts)]
    assert blocks, "a model without experts"
    handles = [block.router.register_forward_hook(_noting(watch, place)) for place, block in enumerate(blocks)]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def expert_loads(model: Decoder, tokens: Tensor, context: int = 256) -> Tensor:
    """[layers, experts]: the share of a layer's choices that fell on each expert, each row summing to one."""
    context = min(context, len(tokens))
    windows = tokens[: len(tokens) // context * context].view(-1, context)
    total = torch.zeros(())
    with watch_routers(model) as watch, torch.inference_mode():
        for some in windows.split(max(1, TOKENS_AT_ONCE // context)):
            model(some.flatten(), torch.arange(context).repeat(len(some)), causal(len(some)))
            total = total + watch.counts()
    return total / total.sum(dim=1, keepdim=True)


def _noting(watch: RouterWatch, layer: int) -> Any:
    def note(module: nn.Module, inputs: tuple[Tensor, ...], scores: Tensor) -> None:
        watch.note(layer, scores)

    return note
