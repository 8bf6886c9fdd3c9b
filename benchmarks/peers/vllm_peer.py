"""vLLM's CPU build as a peer, its engine in this process, in fp32 on one core.

Runs in an environment of its own and imports nothing of ours. python vllm_peer.py MODEL CORE
"""

import json
import os
import random
import sys
import time
from typing import Any

os.sched_setaffinity(0, {int(sys.argv[2])})

from vllm import LLM, SamplingParams, TokensPrompt  # noqa: E402

engine = LLM(
    model=sys.argv[1],
    dtype="float32",
    max_model_len=1024,
    enable_prefix_caching=False,
    max_num_seqs=32,
    disable_log_stats=True,
)
VOCABULARY = engine.get_tokenizer().vocab_size


def run(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] != "generate":
        return {}
    chosen = random.Random(request["seed"])
    prompts = [
        TokensPrompt(prompt_token_ids=[chosen.randrange(VOCABULARY) for _ in range(request["prompt"])])
        for _ in range(request["batch"])
    ]
    params = SamplingParams(temperature=0.0, max_tokens=request["output"], ignore_eos=True)
    wall, cpu = time.perf_counter(), time.process_time()
    engine.generate(prompts, params, use_tqdm=False)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


for line in sys.stdin:
    sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
    sys.stdout.flush()
