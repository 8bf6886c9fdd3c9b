"""Engines of others as a group's workers: servers that speak OpenAI's API behind our router and placement."""
