"""Spans by OpenTelemetry's SDK; imported only when traces are wanted. What is sent, and how often, the SDK's own
environment variables say.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from serving.http.call import Call


class OtelTracer:
    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "penstock"}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("serving.http")

    def begin(self, call: Call) -> OtelSpan:
        parent = call.headers.get(b"traceparent")
        context = extract({"traceparent": parent.decode("latin-1")}) if parent else None
        name = f"{call.scope['method']} {call.scope['path']}"
        span = self._tracer.start_span(name, context=context, kind=SpanKind.SERVER)
        span.set_attribute("http.request.method", call.scope["method"])
        span.set_attribute("url.path", call.scope["path"])
        return OtelSpan(span)

    def close(self) -> None:
        self._provider.shutdown()


class OtelSpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, call: Call, route: str) -> None:
        span = self._span
        span.update_name(f"{call.scope['method']} {route}")
        span.set_attributes(
            {"http.route": route, "http.response.status_code": call.status, "penstock.request_id": call.id}
        )
        span.set_attributes({f"penstock.{name}": value for name, value in call.facts.items() if value is not None})
        if call.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def make_exporting_tracer() -> OtelTracer:
    return OtelTracer(BatchSpanProcessor(OTLPSpanExporter()))
