"""Spans and metrics of sends and handlers, by the conventions of semconv.py."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from catmq_client.callables import is_coroutine_function, name_of
from catmq_client.contrib.otel import semconv
from catmq_client.errors import CatmqError
from catmq_client.message import Message
from catmq_client.sending.receipts import Receipt, SendFuture
from catmq_client.trace_context import (
    TRACEPARENT,
    TraceContext,
    read_trace_context,
)
from catmq_client.version import VERSION

F = TypeVar("F", bound=Callable[..., Any])
SYSTEM = "catmq"
# Brokers refuse messages with more than 32 headers or 8192 bytes of them, and a trace must not
# fail a send. One header is left for the id that an outbox adds.
MAX_HEADERS, MAX_HEADERS_BYTES = 31, 8092
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetry:
    """The instrumentation of a process.

    With `links_only` the span of a handler begins a trace of its own, which links to those of
    its messages, instead of continuing the trace of a single message.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        *,
        links_only: bool,
    ) -> None:
        self.tracer = trace.get_tracer(
            "catmq_client", VERSION, tracer_provider, semconv.SCHEMA_URL
        )
        meter = metrics.get_meter(
            "catmq_client", VERSION, meter_provider, semconv.SCHEMA_URL
        )
        self.links_only = links_only
        boundaries = list(semconv.DURATION_BOUNDARIES)
        self.send_duration = meter.create_histogram(
            semconv.OPERATION_DURATION,
            unit="s",
            description="Duration of a send, until its receipt.",
            explicit_bucket_boundaries_advisory=boundaries,
        )
        self.process_duration = meter.create_histogram(
            semconv.PROCESS_DURATION,
            unit="s",
            description="Duration of a call of a handler.",
            explicit_bucket_boundaries_advisory=boundaries,
        )
        self.sent_messages = meter.create_counter(
            semconv.SENT_MESSAGES,
            unit="{message}",
            description="Messages that a producer attempted to send.",
        )
        self.consumed_messages = meter.create_counter(
            semconv.CONSUMED_MESSAGES,
            unit="{message}",
            description="Messages that a handler got.",
        )
        self.invalid_contexts = meter.create_counter(
            semconv.INVALID_CONTEXTS,
            unit="{message}",
            description="Messages whose header traceparent breaks the rules; it is ignored.",
        )

    def observe_send(self, topic: str, messages: Sequence[dict[str, Any]]) -> SendSpan:
        return SendSpan(self, topic, messages)

    def inject(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return the headers with the trace of the caller's span, if it has one."""
        return _add_context(headers, otel_context.get_current())

    def wrap_handler(self, handler: F, *, group: str) -> F:
        if is_coroutine_function(handler):

            @functools.wraps(handler)
            async def traced(argument: Any) -> Any:
                with self.process(argument, group=group):
                    return await handler(argument)
        else:

            @functools.wraps(handler)
            def traced(argument: Any) -> Any:
                with self.process(argument, group=group):
                    return handler(argument)

        # A partial or an object with __call__ has no name that wraps() could copy.
        traced.__qualname__ = name_of(handler)
        return cast(F, traced)

    @contextmanager
    def process(
        self, messages: Message | Sequence[Message], *, group: str
    ) -> Iterator[trace.Span]:
        """Run a block, which handles messages of a topic, in a span of its own."""
        batch = [messages] if isinstance(messages, Message) else list(messages)
        contexts = [read_trace_context(message.headers) for message in batch]
        topic = batch[0].topic if batch else ""
        common = {
            semconv.SYSTEM: SYSTEM,
            semconv.DESTINATION_NAME: topic,
            semconv.OPERATION_NAME: semconv.PROCESS,
            semconv.GROUP_NAME: group,
        }
        attributes: dict[str, Any] = {**common, semconv.OPERATION_TYPE: semconv.PROCESS}
        if isinstance(messages, Message):
            attributes |= {
                semconv.MESSAGE_ID: messages.message_id,
                semconv.PARTITION_ID: str(messages.queue),
                semconv.OFFSET: messages.offset,
                semconv.ATTEMPT: messages.attempt,
                semconv.BODY_SIZE: len(messages.body),
            }
        else:
            attributes[semconv.BATCH_COUNT] = len(batch)
        invalid_count = sum(
            context is None and TRACEPARENT in message.headers
            for message, context in zip(batch, contexts, strict=True)
        )
        if invalid_count:
            self.invalid_contexts.add(invalid_count, common)
        self.consumed_messages.add(len(batch), common)
        # Several messages of a batch may come from the same span.
        distinct = dict.fromkeys(context for context in contexts if context is not None)
        links = [Link(_span_context(context)) for context in distinct]
        began_at = time.perf_counter()
        error_type: dict[str, str] = {}
        with self.tracer.start_as_current_span(
            f"{semconv.PROCESS} {topic}",
            context=self._parent_context(messages, contexts),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ) as span:
            try:
                yield span
            except BaseException as error:
                error_type = {semconv.ERROR_TYPE: type(error).__qualname__}
                span.set_attributes(error_type)
                raise
            finally:
                duration_s = time.perf_counter() - began_at
                self.process_duration.record(duration_s, {**common, **error_type})

    def _parent_context(
        self,
        messages: Message | Sequence[Message],
        contexts: Sequence[TraceContext | None],
    ) -> otel_context.Context | None:
        """Return the parent of a handler's span: a span of the application around it, else
        the message. Of a batch no message is the parent of the others.
        """
        is_inside_span = trace.get_current_span().get_span_context().is_valid
        if is_inside_span or self.links_only or not isinstance(messages, Message):
            return None
        (context,) = contexts
        if context is None:
            return None
        return trace.set_span_in_context(trace.NonRecordingSpan(_span_context(context)))


class SendSpan:
    """The span of a send. It ends once, whatever tells of the end first.

    The messages of a batch share its context, as the conventions allow.
    """

    def __init__(
        self, otel: OpenTelemetry, topic: str, messages: Sequence[dict[str, Any]]
    ) -> None:
        self._otel = otel
        self._count = len(messages)
        self._common = {
            semconv.SYSTEM: SYSTEM,
            semconv.DESTINATION_NAME: topic,
            semconv.OPERATION_NAME: semconv.SEND,
        }
        attributes: dict[str, Any] = {
            **self._common,
            semconv.OPERATION_TYPE: semconv.SEND,
        }
        if self._count == 1:
            attributes[semconv.BODY_SIZE] = len(messages[0]["body_bytes"])
        else:
            attributes[semconv.BATCH_COUNT] = self._count
        self._span = otel.tracer.start_span(
            f"{semconv.SEND} {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        self._began_at = time.perf_counter()
        self._is_followed = False
        self._has_ended = False
        span_context = self._span.get_span_context()
        context = trace.set_span_in_context(self._span)
        for message in messages:
            headers = _add_context(message.get("headers"), context)
            if headers:
                message["headers"] = headers
            if span_context.is_valid:
                # By it, CatMQ finds the message. The application's own id comes first.
                message.setdefault("trace_id", f"{span_context.trace_id:032x}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._end([exc])
        elif not self._is_followed:
            self._end([])

    def succeed(self, results: Sequence[Receipt | CatmqError]) -> None:
        self._end(results)

    def follow(self, future: SendFuture) -> None:
        self._is_followed = True
        future.add_done_callback(self._end_with_future)

    def _end_with_future(self, future: SendFuture) -> None:
        error = future.exception()
        self._end([future.result() if error is None else error])

    def _end(self, results: Sequence[Receipt | BaseException]) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        errors = [result for result in results if isinstance(result, BaseException)]
        error_type: dict[str, str] = {}
        if errors:
            error = errors[0]
            code = error.code if isinstance(error, CatmqError) else None
            error_type = {semconv.ERROR_TYPE: str(code or type(error).__qualname__)}
            self._span.set_attributes(error_type)
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        elif self._count == 1 and results:
            receipt = cast(Receipt, results[0])
            self._span.set_attribute(semconv.MESSAGE_ID, receipt.message_id)
            # A delayed message has no place yet.
            if receipt.queue is not None and receipt.offset is not None:
                self._span.set_attribute(semconv.PARTITION_ID, str(receipt.queue))
                self._span.set_attribute(semconv.OFFSET, receipt.offset)
        self._span.end()
        attributes = {**self._common, **error_type}
        self._otel.send_duration.record(time.perf_counter() - self._began_at, attributes)
        if len(errors) < self._count:
            self._otel.sent_messages.add(self._count - len(errors), self._common)
        if errors:
            self._otel.sent_messages.add(len(errors), attributes)


def _add_context(
    headers: Mapping[str, str] | None, context: otel_context.Context
) -> dict[str, str] | None:
    """Return headers with a trace context. A context that the application gave is kept, and
    a message whose headers are as many, or as large, as brokers take gets none.
    """
    all_headers = dict(headers or {})
    if read_trace_context(all_headers) is None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context)
        with_trace = {**all_headers, **carrier}
        size = sum(
            len(name.encode()) + len(text.encode()) for name, text in with_trace.items()
        )
        if len(with_trace) <= MAX_HEADERS and size <= MAX_HEADERS_BYTES:
            all_headers = with_trace
    return all_headers or None


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        int(context.trace_id, 16),
        int(context.parent_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(context.sampled)),
        trace_state=trace.TraceState.from_header([context.state] if context.state else []),
    )
