"""Models that answer token by token: engines with continuous batching, simulated step by step."""
