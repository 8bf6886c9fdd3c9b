"""The bounds of the link between a job's coordinator and its workers."""

from __future__ import annotations

from serving.worker.settings import LinkSettings

LINK = LinkSettings(ping_s=0.5, life_s=10.0)
"""A worker that dies closes its link at once; only one that hangs is found by its silence."""
