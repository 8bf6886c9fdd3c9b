"""Hugging Face transformers as a peer: generate() with its own cache, and static batching of requests over time.

Runs in an environment of its own and imports nothing of ours. python transformers_peer.py MODEL CORE
"""

import json
import os
import sys
import time
from typing import Any

os.sched_setaffinity(0, {int(sys.argv[2])})

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(1)
torch.set_grad_enabled(False)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
model.generation_config.eos_token_id = None
VOCABULARY = model.config.vocab_size


def generate(prompts: torch.Tensor, mask: torch.Tensor, output: int) -> None:
    model.generate(
        prompts, attention_mask=mask, max_new_tokens=output, min_new_tokens=output, do_sample=False, pad_token_id=0
    )


def run(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "generate":
        shape = (request["batch"], request["prompt"])
        prompts = torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(request["seed"]))
        wall, cpu = time.perf_counter(), time.process_time()
        generate(prompts, torch.ones_like(prompts), request["output"])
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    if request["op"] == "static":
        return static(request["requests"], request["max_batch"])
    return {}


def static(requests: list[dict[str, Any]], max_batch: int) -> dict[str, Any]:
    """Whoever has arrived is batched, padded to the longest prompt, and runs to the longest output."""
    wall, cpu = time.perf_counter(), time.process_time()
    waiting = sorted(requests, key=lambda one: float(one["arrival"]))
    while waiting:
        now = time.perf_counter() - wall
        batch = [one for one in waiting if one["arrival"] <= now][:max_batch]
        if not batch:
            time.sleep(waiting[0]["arrival"] - now)
            continue
        waiting = [one for one in waiting if one not in batch]
        longest = max(one["prompt"] for one in batch)
        mask = torch.stack([(torch.arange(longest) >= longest - one["prompt"]).long() for one in batch])
        generate(torch.randint(0, VOCABULARY, mask.shape) * mask, mask, max(one["output"] for one in batch))
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


for line in sys.stdin:
    sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
    sys.stdout.flush()
