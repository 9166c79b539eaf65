"""Checks that test_otel.py runs where OpenTelemetry is installed, with FakeBroker."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from catmq_client import Consumer, Producer, ShareConsumer
from catmq_client.aio import AsyncConsumer, AsyncProducer
from catmq_client.contrib import otel
from catmq_client.contrib.otel import semconv
from catmq_client.errors import CatmqError, NotFound
from catmq_client.testing import FakeBroker

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = PARENT.split("-")[1]


class Recorder:
    """A tracer and a meter of OpenTelemetry, and what they have recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [one for one in self.exporter.get_finished_spans() if one.kind == kind]

    def only(self, kind: SpanKind) -> ReadableSpan:
        (span,) = self.spans(kind)
        return span

    def metrics(self) -> dict[str, list[Any]]:
        """Return the data points by the name of their instrument."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorded = Recorder()
    otel.instrument(tracer_provider=recorded.tracers, meter_provider=recorded.meters)
    yield recorded
    otel.uninstrument()


@pytest.fixture
def broker() -> FakeBroker:
    fake = FakeBroker()
    fake.create_topic("orders", queues=1)
    fake.subscribe("billing", "orders")
    return fake


def consumer(broker: FakeBroker, **options: Any) -> Consumer:
    return Consumer(group="billing", topics=["orders"], transport=broker, **options)


def handle(broker: FakeBroker, handler: Any = None, *, count: int = 1, **run: Any) -> None:
    """Run a handler until it was called `count` times."""
    calls = 0
    with consumer(broker) as reader:

        def counting(argument: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == count:
                reader.stop()
            if handler is not None:
                handler(argument)

        reader.run(counting, threads=1, **run)


def trace_id_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def test_names_are_those_of_the_pinned_version() -> None:
    assert schemas.Schemas[f"V{semconv.VERSION.replace('.', '_')}"].value == (
        semconv.SCHEMA_URL
    )
    assert names.MESSAGING_SYSTEM == semconv.SYSTEM
    assert names.MESSAGING_DESTINATION_NAME == semconv.DESTINATION_NAME
    assert names.MESSAGING_DESTINATION_PARTITION_ID == semconv.PARTITION_ID
    assert names.MESSAGING_CONSUMER_GROUP_NAME == semconv.GROUP_NAME
    assert names.MESSAGING_OPERATION_NAME == semconv.OPERATION_NAME
    assert names.MESSAGING_OPERATION_TYPE == semconv.OPERATION_TYPE
    assert names.MESSAGING_BATCH_MESSAGE_COUNT == semconv.BATCH_COUNT
    assert names.MESSAGING_MESSAGE_ID == semconv.MESSAGE_ID
    assert names.MESSAGING_MESSAGE_BODY_SIZE == semconv.BODY_SIZE
    assert names.MessagingOperationTypeValues.SEND.value == semconv.SEND
    assert names.MessagingOperationTypeValues.PROCESS.value == semconv.PROCESS
    assert error_attributes.ERROR_TYPE == semconv.ERROR_TYPE
    metrics = messaging_metrics
    assert metrics.MESSAGING_CLIENT_OPERATION_DURATION == semconv.OPERATION_DURATION
    assert metrics.MESSAGING_CLIENT_SENT_MESSAGES == semconv.SENT_MESSAGES
    assert metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES == semconv.CONSUMED_MESSAGES
    assert metrics.MESSAGING_PROCESS_DURATION == semconv.PROCESS_DURATION


def test_a_message_is_one_trace_from_its_sender_to_its_handler(
    broker: FakeBroker, recorder: Recorder
) -> None:
    tracer = recorder.tracers.get_tracer("shop")
    with Producer(transport=broker) as producer, tracer.start_as_current_span("checkout"):
        receipt = producer.send("orders", b"tea", headers={"h": "v"})
    handle(broker)
    send, process = recorder.only(SpanKind.PRODUCER), recorder.only(SpanKind.CONSUMER)
    (checkout,) = recorder.spans(SpanKind.INTERNAL)
    assert (send.name, process.name) == ("send orders", "process orders")
    assert send.parent.span_id == checkout.context.span_id
    assert process.parent.span_id == send.context.span_id
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert trace_id_of(process) == trace_id_of(checkout)
    assert dict(send.attributes) == {
        "messaging.system": "catmq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 3,
        "messaging.message.id": receipt.message_id,
        "messaging.destination.partition.id": str(receipt.queue),
        "catmq.message.offset": 0,
    }
    assert dict(process.attributes) == {
        "messaging.system": "catmq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": receipt.message_id,
        "messaging.destination.partition.id": str(receipt.queue),
        "messaging.message.body.size": 3,
        "catmq.message.offset": 0,
        "catmq.message.attempt": 0,
    }
    assert send.instrumentation_scope.schema_url == semconv.SCHEMA_URL
    (stored,) = broker.messages("orders")
    assert stored.headers["h"] == "v" and stored.trace_id == trace_id_of(send)


def test_what_a_handler_sends_belongs_to_the_same_trace(
    broker: FakeBroker, recorder: Recorder
) -> None:
    broker.create_topic("bills", queues=1)
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
        handle(broker, lambda _: producer.send("bills", b"2"))
    first, second = recorder.spans(SpanKind.PRODUCER)
    assert second.parent.span_id == recorder.only(SpanKind.CONSUMER).context.span_id
    assert trace_id_of(first) == trace_id_of(second)


def test_a_retry_keeps_the_trace_and_counts_its_attempt(
    broker: FakeBroker, recorder: Recorder
) -> None:
    broker.configure("billing", "orders", retries=1, retry_delay_s=0)
    tries: list[bytes] = []

    def fail_once(message: Any) -> None:
        tries.append(message.body)
        if len(tries) == 1:
            raise KeyError("first")

    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
    handle(broker, fail_once, count=2)
    failed, handled = recorder.spans(SpanKind.CONSUMER)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "KeyError"
    assert handled.status.status_code is StatusCode.UNSET
    assert handled.attributes["catmq.message.attempt"] == 1
    assert handled.parent == failed.parent
    durations = {
        point.attributes.get("error.type"): point.count
        for point in recorder.metrics()["messaging.process.duration"]
    }
    assert durations == {"KeyError": 1, None: 1}


@pytest.mark.parametrize("bad", ["junk", PARENT.upper(), "00-" + "0" * 32 + PARENT[35:]])
def test_a_header_that_breaks_the_rules_is_ignored_and_counted(
    broker: FakeBroker, recorder: Recorder, bad: str
) -> None:
    otel.uninstrument()
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1", headers={"traceparent": bad})
    otel.instrument(tracer_provider=recorder.tracers, meter_provider=recorder.meters)
    handle(broker)
    process = recorder.only(SpanKind.CONSUMER)
    assert process.parent is None and not process.links
    (point,) = recorder.metrics()["catmq.trace_context.invalid"]
    assert point.value == 1


def test_a_context_that_the_application_gives_is_kept(
    broker: FakeBroker, recorder: Recorder
) -> None:
    given = {"traceparent": PARENT, "tracestate": "vendor=a:b"}
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1", headers=given)
    handle(broker)
    process = recorder.only(SpanKind.CONSUMER)
    assert trace_id_of(process) == TRACE_ID
    assert process.parent.trace_state.to_header() == "vendor=a:b"
    (stored,) = broker.messages("orders")
    assert {name: stored.headers[name] for name in given} == given
    assert stored.trace_id == TRACE_ID


@pytest.mark.parametrize("full", [{f"h{n}": "v" for n in range(32)}, {"h": "v" * 8150}])
def test_a_full_set_of_headers_gets_no_trace_and_is_sent(
    broker: FakeBroker, recorder: Recorder, full: dict[str, str]
) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1", headers=full)
    (stored,) = broker.messages("orders")
    assert stored.headers == full and stored.trace_id


def test_a_batch_is_a_span_and_its_handler_links_to_all_senders(
    broker: FakeBroker, recorder: Recorder
) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch("orders", [b"1", b"2"])
        producer.send("orders", b"3")
    seen: list[Any] = []
    handle(broker, seen.extend, batch=10)
    batch, single = recorder.spans(SpanKind.PRODUCER)
    assert batch.attributes["messaging.batch.message_count"] == 2
    process = recorder.only(SpanKind.CONSUMER)
    assert [message.body for message in seen] == [b"1", b"2", b"3"]
    assert process.parent is None
    linked = {link.context.span_id for link in process.links}
    assert linked == {batch.context.span_id, single.context.span_id}
    metrics = recorder.metrics()
    assert sum(p.value for p in metrics["messaging.client.sent.messages"]) == 3
    assert sum(p.value for p in metrics["messaging.client.consumed.messages"]) == 3
    (duration,) = metrics["messaging.client.operation.duration"]
    assert duration.count == 2
    assert tuple(duration.explicit_bounds) == semconv.DURATION_BOUNDARIES


def test_a_send_that_fails_is_an_error_with_its_code(
    broker: FakeBroker, recorder: Recorder
) -> None:
    with Producer(transport=broker) as producer, pytest.raises(NotFound):
        producer.send("nowhere", b"1")
    span = recorder.only(SpanKind.PRODUCER)
    assert span.attributes["error.type"] == "topic_not_found"
    assert span.status.status_code is StatusCode.ERROR
    (point,) = recorder.metrics()["messaging.client.sent.messages"]
    assert point.attributes["error.type"] == "topic_not_found"


def test_a_send_in_the_background_ends_with_its_receipt(
    broker: FakeBroker, recorder: Recorder
) -> None:
    with Producer(transport=broker) as producer:
        receipt = producer.send_async("orders", b"1").result()
        producer.send_oneway("orders", b"2")
        producer.flush()
    first, second = recorder.spans(SpanKind.PRODUCER)
    assert first.attributes["messaging.message.id"] == receipt.message_id
    assert second.attributes["catmq.message.offset"] == 1


def test_coroutines_are_followed_too(broker: FakeBroker, recorder: Recorder) -> None:
    async def story() -> None:
        async with AsyncProducer(transport=broker) as producer:
            await producer.send("orders", b"1")
            await (await producer.send_soon("orders", b"2"))
            results = await producer.send_many("orders", [b"3", b"4"])
            assert not any(isinstance(result, CatmqError) for result in results)
        bodies: list[bytes] = []
        reader = AsyncConsumer(group="billing", topics=["orders"], transport=broker)
        async with reader:

            async def handler(message: Any) -> None:
                await asyncio.sleep(0)
                bodies.append(message.body)
                if len(bodies) == 4:
                    reader.stop()

            await reader.run(handler, concurrency=2)
        assert sorted(bodies) == [b"1", b"2", b"3", b"4"]

    asyncio.run(story())
    sends = recorder.spans(SpanKind.PRODUCER)
    assert len(sends) == 3
    processes = recorder.spans(SpanKind.CONSUMER)
    assert len(processes) == 4
    assert {span.parent.span_id for span in processes} == {
        span.context.span_id for span in sends
    }


def test_a_share_group_is_followed_too(broker: FakeBroker, recorder: Recorder) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
    reader = ShareConsumer(group="workers", topics=["orders"], transport=broker)
    with reader:
        reader.run(lambda _: reader.stop(), threads=1)
    process = recorder.only(SpanKind.CONSUMER)
    assert process.attributes["messaging.consumer.group.name"] == "workers"
    assert process.parent.span_id == recorder.only(SpanKind.PRODUCER).context.span_id


def test_iteration_is_followed_in_a_block(broker: FakeBroker, recorder: Recorder) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
    with consumer(broker) as reader:
        message = next(iter(reader))
        with otel.process(message, group="billing") as span:
            assert trace.get_current_span() is span
    assert recorder.only(SpanKind.CONSUMER).name == "process orders"
    otel.uninstrument()
    with otel.process(message, group="billing") as span:
        assert span is None


def test_links_only_begins_a_trace_for_each_handler(
    broker: FakeBroker, recorder: Recorder
) -> None:
    otel.instrument(
        tracer_provider=recorder.tracers, meter_provider=recorder.meters, links_only=True
    )
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
    handle(broker)
    send, process = recorder.only(SpanKind.PRODUCER), recorder.only(SpanKind.CONSUMER)
    assert process.parent is None and trace_id_of(process) != trace_id_of(send)
    assert [link.context.span_id for link in process.links] == [send.context.span_id]


def test_nothing_is_recorded_without_instrument(broker: FakeBroker) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"1")
    (stored,) = broker.messages("orders")
    assert not stored.headers and stored.trace_id is None


def test_a_collector_gets_the_spans(broker: FakeBroker) -> None:
    """An OTLP receiver over HTTP decodes what OpenTelemetry's exporter sends."""
    received: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Write no line for each request."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tracers = TracerProvider()
    url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url)))
    otel.instrument(tracer_provider=tracers)
    try:
        with Producer(transport=broker) as producer:
            producer.send("orders", b"1")
        handle(broker)
    finally:
        otel.uninstrument()
        tracers.shutdown()
        server.shutdown()
        server.server_close()
    spans = [
        span
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [span.name for span in spans] == ["send orders", "process orders"]
    assert spans[1].trace_id == spans[0].trace_id
    assert spans[1].parent_span_id == spans[0].span_id
    assert spans[1].links[0].span_id == spans[0].span_id
