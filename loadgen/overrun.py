"""When a generator is so far behind that it stops, and what is then said. Shared by all that send."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_S = 5.0
_SHARE = 0.1
"""Of the time that the whole was to take."""


@dataclass(frozen=True)
class Overrun:
    """A generator that stopped because it could not send so fast."""

    sent: int
    elapsed_s: float
    behind_s: float

    def __str__(self) -> str:
        return (
            f"the generator cannot send so fast: it managed {self.sent / self.elapsed_s:.0f} requests/s, and stopped "
            f"{self.behind_s:.1f} s behind, after {self.elapsed_s:.1f} s; lower the rate, or split it over several "
            "(Locust's workers)"
        )


def is_too_far_behind(behind_s: float, duration_s: float) -> bool:
    """`duration_s`: that the whole was to take. What is sent so late says nothing any more."""
    return behind_s > max(_LEAST_S, _SHARE * duration_s)
