"""What comes back for one request, and when. Whoever reads the socket feeds bytes and times; the record is filled."""

from __future__ import annotations

import math

import msgspec

from loadgen.results.record import Record


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ErrorBody(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    type: str | None = None


class Answer(msgspec.Struct):
    """A whole answer, or a piece of one; of any route."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorBody | str | None = None


_decode = msgspec.json.Decoder(Answer).decode


class Reading:
    """The answer to one request. `begin`, `feed` as bytes come, then `end`; or `fail` at any time."""

    __slots__ = ("_buffer", "_is_event_stream", "_is_finished", "_pieces", "_record")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._buffer = b""
        self._pieces = 0
        self._is_event_stream = self._is_finished = False

    def begin(self, status: int, content_type: str) -> None:
        self._record.status = status
        self._is_event_stream = status == 200 and content_type.startswith("text/event-stream")

    def feed(self, data: bytes, now_s: float) -> None:
        self._buffer += data
        if not self._is_event_stream:
            return
        # Events end with an empty line; a line may end in either way.
        events = self._buffer.replace(b"\r\n", b"\n").split(b"\n\n")
        self._buffer = events.pop()
        for event in events:
            self._event(event, now_s)

    def end(self, now_s: float) -> None:
        record = self._record
        record.done_s = now_s
        if record.status != 200:
            self._failed(_parsed(self._buffer), f"http-{record.status}")
        elif self._is_event_stream:
            if not self._is_finished and not record.reason:
                record.reason = "cut-off"
            if not record.output_tokens:
                record.output_tokens = self._pieces
            if math.isnan(record.first_s):  # nothing but empty pieces came
                record.first_s = record.last_s = now_s
        else:
            self._whole(_parsed(self._buffer))

    def fail(self, reason: str, now_s: float) -> None:
        self._record.reason, self._record.done_s = reason, now_s

    def _event(self, event: bytes, now_s: float) -> None:
        data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            return
        if data == b"[DONE]":
            self._is_finished = True
            return
        answer = _parsed(data)
        if answer is None or answer.error is not None:
            self._failed(answer, "not-understood")
            return
        record = self._record
        for choice in answer.choices:
            if choice.text or (choice.delta is not None and choice.delta.content):
                self._pieces += 1
                if math.isnan(record.first_s):
                    record.first_s = now_s
                else:
                    record.gaps_s.append(now_s - record.last_s)
                record.last_s = now_s
        self._count(answer)

    def _whole(self, answer: Answer | None) -> None:
        if answer is None or answer.error is not None:
            self._failed(answer, "not-understood")
        else:
            self._count(answer)

    def _count(self, answer: Answer) -> None:
        if answer.usage is not None:
            self._record.prompt_tokens = answer.usage.prompt_tokens
            self._record.output_tokens = answer.usage.completion_tokens

    def _failed(self, answer: Answer | None, otherwise: str) -> None:
        error = None if answer is None else answer.error
        told = (error.code or error.type) if isinstance(error, ErrorBody) else None
        self._record.reason = str(told or otherwise)


def _parsed(data: bytes) -> Answer | None:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
