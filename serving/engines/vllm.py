"""vLLM as a server of OpenAI's API: its command for a group's shape and memory, its sleep mode. Imports nothing of it;
it may live in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from serving.worker.foreign import EngineConfig
from serving.worker.messages import ModelSpec

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "auto"}


def resolved(engine: EngineConfig) -> EngineConfig:
    """With what vLLM is known to have: sleep level 1 keeps weights in host memory (on CPU it only stops scheduling)."""
    if engine.kind != "vllm" or engine.sleep:
        return engine
    return msgspec.structs.replace(engine, sleep="/sleep?level=1", wake="/wake_up")


def vllm_command(python: str, values: Mapping[str, str], socket: str, spec: ModelSpec, *, on_cpu: bool) -> list[str]:
    command = [python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", values["path"], "--served-model-name", values["name"]]
    command += ["--uds", socket, "--dtype", _DTYPES[spec.precision]]
    command += ["--tensor-parallel-size", values["tp"], "--pipeline-parallel-size", values["pp"]]
    command += ["--max-num-seqs", str(spec.max_sequences), "--disable-uvicorn-access-log"]
    command += ["--kv-cache-memory-bytes", values["kv_bytes"]]
    return command if on_cpu else [*command, "--enable-sleep-mode"]


def vllm_environment(numbers: Sequence[int], *, on_cpu: bool) -> dict[str, str]:
    """On CPU each core of the group is one device, as with our own workers. Its development mode has the sleep calls,
    and others that no key guards: it listens at a socket that only this user reaches."""
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if on_cpu:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, numbers))
    return environment
