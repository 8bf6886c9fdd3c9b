"""Models from Hugging Face layout directories: configuration, weights, and one device's share of the computation."""

from serving.models.config import ModelConfig, read_config, why_no_graphs
from serving.models.shard import Shard, make_shard, stage_boundaries

__all__ = ["ModelConfig", "Shard", "make_shard", "read_config", "stage_boundaries", "why_no_graphs"]
