"""How fast an expert layer runs on a CPU core: against the products it cannot do without, and transformers' own block.

python -m benchmarks.moe_layer [--tiny] [--rounds N]

One core, fp32, two layers: few large experts (as in Mixtral) and many small ones (as in Qwen3-MoE and DeepSeek), with
skewed routes. `bound` is the longer of two times: dense products with as many multiply-adds, by torch or by our own
panels, whichever is faster; and adding up the weights of the experts that are asked, in order. `panels` is what serves,
`grouped` and `one by one` are the two ways of the torch layer, all with gate and routing; `transformers` is its Mixtral
block with the same weights, as it comes and with its own grouped product. All take turns; a figure is in CPU seconds,
the median over rounds with its quartiles. `counting` is what noting routes costs a step of one layer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from benchmarks.cases import emit, note
from moe import steps
from moe.counter import RouteCounter
from moe.experts import Experts
from moe.gate import Gate
from moe.layer import ExpertLayer
from serving.models.expert_forms import prepare_experts

LAYERS = {"8 large": (8, 2, 1024, 2048), "64 small": (64, 6, 1024, 512)}  # experts, top_k, hidden, ffn
TINY = {"4 tiny": (4, 2, 32, 48)}
TOKENS = (1, 32, 512)
NEVER = 1 << 60
NOTES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.tiny else options.rounds
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for name, sizes in (TINY if options.tiny else LAYERS).items():
            world = World(*sizes)
            for tokens in TOKENS[:2] if options.tiny else TOKENS:
                found[f"{name}, {tokens} tokens"] = cell = world.measure(tokens, rounds)
                note(f"{name}, {tokens} tokens: {cell}")
    largest = max(TOKENS[:2] if options.tiny else TOKENS)
    worst = max(cell["ratio_to_bound"] for name, cell in found.items() if f" {largest} tokens" in name)
    slowest = min(cell["ratio_to_transformers"] for cell in found.values())
    counting = max(cell["counting_share"] for cell in found.values())
    emit(
        {
            "benchmark": "moe_layer",
            "ratio": worst,
            "ratio_means": f"layer / GEMM bound at {largest} tokens, worst layer (goal 1.5)",
            "slowest_ratio_to_transformers": slowest,
            "counting_share": counting,
            "layers": found,
            "rounds": rounds,
        }
    )


class World:
    """One layer in all its forms, with the same weights."""

    def __init__(self, experts: int, top_k: int, hidden: int, ffn: int) -> None:
        self.experts, self.top_k, self.hidden, self.ffn = experts, top_k, hidden, ffn
        torch.manual_seed(0)
        self.router = nn.Linear(hidden, experts, bias=False)
        plain = Experts(experts, hidden, ffn)
        for weight in (plain.up, plain.down):
            nn.init.normal_(weight, std=hidden**-0.5)
        # Popular experts: a few directions that all tokens share.
        self.lean = torch.randn(hidden) * 0.1
        gate = Gate(top_k)
        self.plain = ExpertLayer(self.router, gate, plain)
        self.panels = ExpertLayer(self.router, gate, prepare_experts(plain, "fp32"))
        self.peers = {kind: self._peer(plain, kind) for kind in ("eager", "grouped_mm")}

    def _peer(self, plain: Experts, kind: str) -> nn.Module:
        config = MixtralConfig(
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_local_experts=self.experts,
            num_experts_per_tok=self.top_k,
        )
        config._experts_implementation = kind
        block: Any = MixtralSparseMoeBlock(config).eval()
        block.gate.weight = self.router.weight
        block.experts.gate_up_proj, block.experts.down_proj = plain.up, plain.down
        module: nn.Module = block
        return module

    def measure(self, tokens: int, rounds: int) -> dict[str, Any]:
        x = torch.randn(tokens, self.hidden) + self.lean
        expected = self.peers["eager"](x[None])[0]
        runs: dict[str, Callable[[], Tensor]] = {
            "panels": lambda: self.panels(x),
            "grouped": lambda: self._plainly(x, 0),
            "one by one": lambda: self._plainly(x, NEVER),
            "transformers": lambda: self.peers["eager"](x[None])[0],
            "transformers grouped": lambda: self.peers["grouped_mm"](x[None])[0],
        }
        for run in runs.values():
            torch.testing.assert_close(run(), expected, atol=1e-4, rtol=1e-3)
        counter, routes = RouteCounter(self.experts), self._routes(x)

        def count() -> None:
            for _ in range(NOTES):
                counter.note(routes)

        repeats = max(1, 64 // tokens)
        timed: dict[str, Callable[[], object]] = {
            **runs,
            "product": self._product(tokens),
            "panel product": self._panel_product(tokens),
            "reading": self._reading(routes),
            "counting": count,
        }
        seconds = take_turns(timed, rounds, repeats)
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        bound = max(min(middle["product"], middle["panel product"]), middle["reading"])
        peer = min(middle["transformers"], middle["transformers grouped"])
        return {
            "ratio_to_bound": round(middle["panels"] / bound, 3),
            "torch_ratio_to_torch_bound": round(
                min(middle["grouped"], middle["one by one"]) / max(middle["product"], middle["reading"]), 3
            ),
            "ratio_to_transformers": round(peer / middle["panels"], 3),
            "counting_share": round(middle["counting"] / NOTES / middle["panels"], 5),
            "bound_us": round(1e6 * bound, 1),
            "us": {name: [round(1e6 * q, 1) for q in quartiles(seconds[name])] for name in runs},
        }

    def _plainly(self, x: Tensor, grouped_from: int) -> Tensor:
        with patch.object(steps, "GROUPED_FROM_ROWS", grouped_from):
            y: Tensor = self.plain(x)
        return y

    def _routes(self, x: Tensor) -> Tensor:
        counter = self.plain.counter = RouteCounter(self.experts, keep_routes=True)
        self.plain(x)
        self.plain.counter = None
        return counter.take_routes()

    def _product(self, tokens: int) -> Callable[[], object]:
        """As many multiply-adds, all rows with one expert's matrices."""
        rows = torch.randn(tokens * self.top_k, self.hidden)
        inside = torch.randn(tokens * self.top_k, self.ffn)
        plain: Any = self.plain.experts
        up, down = plain.up[0].t().contiguous(), plain.down[0].t().contiguous()
        return lambda: (rows @ up, inside @ down)

    def _panel_product(self, tokens: int) -> Callable[[], object]:
        rows = torch.randn(tokens * self.top_k, self.hidden)
        inside = torch.randn(tokens * self.top_k, self.ffn)
        bank: Any = self.panels.experts
        first = bank.held[0]
        return lambda: (first.up.multiply(rows), first.down.multiply(inside))

    def _reading(self, routes: Tensor) -> Callable[[], object]:
        plain: Any = self.plain.experts
        asked = routes.unique().tolist()
        return lambda: [part[expert].sum() for expert in asked for part in (plain.up, plain.down)]


def take_turns(runs: dict[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of a call of each, in each round; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(repeats):
                run()
            if number:
                seconds[name].append((time.process_time() - start) / repeats)
    return seconds


def quartiles(values: list[float]) -> list[float]:
    return [float(torch.tensor(values).quantile(q)) for q in (0.25, 0.5, 0.75)]


if __name__ == "__main__":
    main()
