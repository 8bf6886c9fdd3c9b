"""How the next token is chosen. This door needs numpy alone; `sample`, in sampler.py, needs torch."""

from serving.sampling.parameters import SamplingParams, validate
from serving.sampling.results import Sampled, TokenLogprobs
from serving.sampling.rows import LogitEdits, Sampleable, SamplingRows, build_rows
from serving.sampling.uniform import fresh_seed, uniforms

__all__ = [
    "LogitEdits",
    "Sampleable",
    "Sampled",
    "SamplingParams",
    "SamplingRows",
    "TokenLogprobs",
    "build_rows",
    "fresh_seed",
    "uniforms",
    "validate",
]
