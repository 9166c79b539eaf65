"""Traces and metrics by OpenTelemetry, with the extra `otel` of the client.

    from catmq_client.contrib import otel

    otel.instrument()

From then on, each send is a span whose context travels with its messages, and each call of a
handler of run() is a span that continues it. See docs/how-to/trace-messages.md.

Without OpenTelemetry this module can be imported, and process() does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from catmq_client import instrumentation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from catmq_client.contrib.otel.spans import OpenTelemetry
    from catmq_client.message import Message

__all__ = ["instrument", "process", "uninstrument"]

_installed: OpenTelemetry | None = None


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    links_only: bool = False,
) -> None:
    """Follow all sends and handlers of this process from now on.

    Without providers, those that OpenTelemetry's API has are used. `links_only`: the span of
    a handler is a trace of its own, linked to its messages. Handlers that run() has begun
    with are not followed. Raises ImportError without OpenTelemetry.
    """
    global _installed
    try:
        from catmq_client.contrib.otel.spans import OpenTelemetry
    except ModuleNotFoundError as error:
        raise ImportError(
            f"There is no module {error.name}: give the client its extra otel, and install "
            "OpenTelemetry's SDK with an exporter"
        ) from error
    _installed = OpenTelemetry(tracer_provider, meter_provider, links_only=links_only)
    instrumentation.install(_installed)


def uninstrument() -> None:
    """Follow nothing any more. Spans that have begun still end."""
    global _installed
    _installed = None
    instrumentation.install(None)


@contextmanager
def process(messages: Message | Sequence[Message], *, group: str) -> Iterator[Span | None]:
    """Handle messages of iteration or poll() in a span, as run() does by itself.

    Yields None, and follows nothing, without instrument().
    """
    if _installed is None:
        yield None
        return
    with _installed.process(messages, group=group) as span:
        yield span
