"""Nodes and workers of a cluster that others keep: Ray's. Knows neither router nor controller nor training."""
