"""Compiles what many tests call, once, so that none waits for it; `make test` runs it beside the type check."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine import TINY, Ours
from serving.controller import warm
from serving.small_models.random import make_random


def main():
    warm.main()  # planning and routing
    for experts in (0, 4):
        with TemporaryDirectory() as folder:
            make_random(Path(folder), **TINY, experts=experts)
            Ours(Path(folder)).ask(op="batch", seed=0, batch=2, prompt=8, output=2)
    import tests.serving.parallel.warm
    import tests.training.queue.warm  # noqa: F401


if __name__ == "__main__":
    main()
