"""What was asked for in the last moments, by model: seconds of device time a second."""

from __future__ import annotations

from collections import deque


class RecentDemand:
    """A window that slides; what is older is forgotten."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, str, float]] = deque()
        self._work: dict[str, float] = {}

    def add(self, now: float, model: str, work_s: float) -> None:
        self._seen.append((now, model, work_s))
        self._work[model] = self._work.get(model, 0.0) + work_s

    def work_per_s(self, now: float) -> dict[str, float]:
        while self._seen and self._seen[0][0] <= now - self._window_s:
            _, model, work_s = self._seen.popleft()
            self._work[model] = max(self._work[model] - work_s, 0.0)
        if not self._seen:
            self._work.clear()  # rounding does not add up
        return {model: work / self._window_s for model, work in self._work.items()}
