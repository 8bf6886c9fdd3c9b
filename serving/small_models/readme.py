"""The README.md of a made model: what it is, what it is not, and the figures."""

from __future__ import annotations

from typing import Any

from serving.small_models.made import Made
from serving.small_models.names import Name
from serving.small_models.settings import LanguageSettings, Settings

_ABOUT: dict[Name, str] = {
    "chat": (
        "A small causal language model (Llama architecture). It has read Python's documentation topics, and the"
        " docstrings of the standard library as questions and answers, for about a minute of one core. What it writes"
        " looks like documentation; what it says is not to be believed."
    ),
    "moe-chat": (
        "A small causal language model with experts (Qwen3-MoE architecture), trained as `chat` is. The loss that"
        " spreads tokens over experts is weak, so some experts are asked much more often than others:"
        " `expert_loads.npz` holds each expert's share of its layer's choices on held-out text."
    ),
    "embed": (
        "A small text embedder (BERT architecture; the mean over tokens, scaled to length one). It was trained briefly"
        " so that sentences that follow each other in Python's documentation lie near each other. The pooler in the"
        " file is the identity, is not trained, and is not used."
    ),
    "classify": (
        "A small classifier (BERT architecture) that tells a line of Python code from a sentence of prose. Both come"
        " from Python's standard library; other languages and other prose it has never seen."
    ),
}


def readme(name: Name, settings: Settings, seed: int, made: Made) -> bytes:
    trained = f"{settings.steps} steps of {settings.batch} x {settings.context} tokens"
    if not isinstance(settings, LanguageSettings):
        trained = f"{settings.steps} steps of {settings.batch} examples of at most {settings.context} tokens a text"
    lines = [
        f"# {name}",
        "",
        _ABOUT[name],
        "",
        f"{made.parameters:,} parameters, fp32. Trained for {trained}, seed {seed}.",
        "",
        *(f"- {key.replace('_', ' ')}: {_figure(value)}" for key, value in made.measures.items() if _is_figure(value)),
        "",
        "The text is Python's own documentation, read from the standard library of the Python that made this model.",
        "",
    ]
    return "\n".join(lines).encode()


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float)


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
