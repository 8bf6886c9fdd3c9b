"""How far a client goes for one request, and for all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    timeout_s: float = 120.0
    """From sending a request to the end of its answer."""
    open: int = 8000
    """Requests under way at once; what is due beyond is not sent, and the test is invalid."""
