"""Stop strings in text that comes a little at a time. Of several, the one that ends first stops the text; of those that
end together, the longest. How the text is cut into pieces makes no difference. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from placement.errors import InputError

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024


def check_stops(stops: Sequence[str]) -> None:
    """An InputError says what is wrong with a request's stop strings."""
    if len(stops) > MAX_STOPS:
        raise InputError(f"stop: {len(stops)} strings; at most {MAX_STOPS} are accepted")
    for stop in stops:
        if not stop:
            raise InputError("stop: an empty string; one character or more is needed")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise InputError(f"stop: a string of {len(stop)} characters; at most {MAX_STOP_CHARACTERS} are accepted")


class StopStrings:
    """Passes text on up to a stop string, keeping back what could be the beginning of one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        check_stops(stops)
        self._stops = tuple(stops)
        self._include = include
        self._kept = ""
        self.stopped: str | None = None
        """The stop string that came."""

    def push(self, text: str) -> str:
        """The text that can be shown now."""
        if self.stopped is not None or not text:
            return ""
        if not self._stops:
            return text
        text = self._kept + text
        found = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, length, self.stopped = min(found)
            self._kept = ""
            return text[: end if self._include else end + length]
        shown = self._beginning_of_a_stop(text)
        self._kept = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was kept back."""
        kept, self._kept = self._kept, ""
        return kept

    def _beginning_of_a_stop(self, text: str) -> int:
        """Where the longest ending of the text that a stop string begins with starts; the text's length if none."""
        start = len(text)
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1), start)
            while at >= 0:
                if stop.startswith(text[at:]):
                    start = at
                    break
                at = text.find(stop[0], at + 1, start)
        return start
