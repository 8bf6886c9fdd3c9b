"""CTranslate2 as a peer, in fp32 on one core; converts the model beside itself once.

Runs in an environment of its own and imports nothing of ours. python ctranslate2_peer.py MODEL CORE
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.sched_setaffinity(0, {int(sys.argv[2])})

import ctranslate2  # noqa: E402
from ctranslate2.converters import TransformersConverter  # noqa: E402

source = Path(sys.argv[1])
converted = source.with_name(source.name + "-ctranslate2")
if not (converted / "model.bin").exists():
    TransformersConverter(str(source)).convert(str(converted), force=True)
    settings = converted / "config.json"
    named = {key: value or "<|endoftext|>" for key, value in json.loads(settings.read_text()).items()}
    settings.write_text(json.dumps(named))  # it wants a name even for tokens that the model does not have
generator = ctranslate2.Generator(str(converted), device="cpu", intra_threads=1, inter_threads=1)
WORDS = json.loads((converted / "vocabulary.json").read_text())


def run(request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] != "generate":
        return {}
    chosen = random.Random(request["seed"])
    prompts = [[chosen.choice(WORDS[300:]) for _ in range(request["prompt"])] for _ in range(request["batch"])]
    wall, cpu = time.perf_counter(), time.process_time()
    generator.generate_batch(
        prompts,
        max_length=request["output"],
        min_length=request["output"],
        include_prompt_in_result=False,
        beam_size=1,
        sampling_topk=1,
    )
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


for line in sys.stdin:
    sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
    sys.stdout.flush()
