"""How the server of a model is started on a group's devices: its command and environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from serving.engines.exchange import Place
from serving.engines.vllm import vllm_command, vllm_environment
from serving.text import Tokenizer
from serving.worker.device import THREAD_VARIABLES, parse_device
from serving.worker.foreign import EngineConfig, fill_in
from serving.worker.messages import ModelSpec


@dataclass(frozen=True)
class Launch:
    """A model for a group of these devices."""

    spec: ModelSpec
    engine: EngineConfig
    devices: tuple[str, ...]
    """cpu:N or cuda:N, in the plan's order."""
    tp: int
    pp: int

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_on_cpu(self) -> bool:
        return parse_device(self.devices[0]).kind == "cpu"

    @property
    def numbers(self) -> list[int]:
        return [parse_device(device).number for device in self.devices]

    def command(self, place: Place) -> tuple[list[str], dict[str, str]]:
        """By which it is started, to listen there, and what is added to the environment."""
        values = {
            "devices": ",".join(map(str, self.numbers)),
            "kv_bytes": str(self.spec.kv_bytes),
            "name": self.name,
            "path": self.spec.path,
            "port": str(place.port),
            "pp": str(self.pp),
            "tp": str(self.tp),
        }
        environment = dict.fromkeys(THREAD_VARIABLES, str(len(self.devices))) if self.is_on_cpu else {}
        if self.engine.kind == "vllm":
            python = self.engine.python or sys.executable
            command = vllm_command(python, values, place.socket, self.spec, on_cpu=self.is_on_cpu)
            environment |= vllm_environment(self.numbers, on_cpu=self.is_on_cpu)
            return command + list(self.engine.arguments), environment | self.engine.environment
        return fill_in(self.engine.command, values), environment | self.engine.environment

    def text(self, prompt: list[int]) -> str:
        """For servers that do not take tokens."""
        return self._tokenizer.decode(prompt, False)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(Path(self.spec.path))
