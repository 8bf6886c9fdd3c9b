"""A span for each request, when the `trace` extra is installed and OTEL_EXPORTER_OTLP_ENDPOINT says where to send it.
Without either nothing is imported and nothing is paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from serving.http.call import Call
from serving.http.logs import get_log

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Span(Protocol):
    def end(self, call: Call, route: str) -> None: ...


class Tracer(Protocol):
    def begin(self, call: Call) -> Span:
        """Continues the trace that the client's `traceparent` header names."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def make_tracer(environment: Mapping[str, str]) -> Tracer | None:
    """None when there is nowhere to send spans, or (with a warning) nothing to make them with."""
    if not environment.get(ENDPOINT_VARIABLE):
        return None
    try:
        from serving.http.otel import make_exporting_tracer
    except ImportError as error:
        get_log("http").warning("no traces", reason=f"{error}; install penstock[trace] for {ENDPOINT_VARIABLE}")
        return None
    return make_exporting_tracer()
