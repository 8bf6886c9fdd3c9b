"""Elastic training: `lm` jobs that grow and shrink in place. What the queue needs of it; imports no torch."""

from training.elastic.spec import LmSpec, read_spec

__all__ = ["LmSpec", "read_spec"]
