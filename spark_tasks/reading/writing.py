"""Write rows as messages through the brokers. Each is stored once, however often a task or
run is repeated.

The driver fetches the layout, and tasks choose the queue of every message from it. Each
request has messages of a single queue and a batch id, made of the run, the task, the queue
and the number of the request. Spark repeats a task with the same rows in the same order if
its input has an order (`sortWithinPartitions`). Then its requests have the same ids, and
the broker answers those that it has stored already, for a day (table `sent_batch`). The run
of a stream is its query, so the same holds after a restart, unless the topic was expanded
in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from catmq_client import HttpTransport
from catmq_client.errors import CatmqError
from catmq_client.http.transport import api_path, repeat_call, request_until
from catmq_client.sending.ids import uuid7
from catmq_client.sending.routing import Kind, layout_from, slot_of
from catmq_client.sending.send_request import NextStep, after_failure, send
from spark_tasks.errors import JobError, OptionError
from spark_tasks.nodes import plans
from spark_tasks.reading.options import Options

SENDABLE_COLUMNS = ("key", "tag", "headers", "body", "trace_id", "queue")
DELIVERY_TIMEOUT_S = 120.0  # of a request with all its repeats
REQUEST_TIMEOUT_S = 10.0  # of an attempt
MAX_REQUEST_BYTES = 1 << 20  # of bodies in a request
_STREAM_PROPERTIES = ("sql.streaming.queryId", "streaming.sql.batchId")


@dataclass
class SentMessages(WriterCommitMessage):
    """The number of messages that a task sent."""

    messages: int


def batch_id(run: str, epoch: int, request: tuple[int, int, int]) -> str:
    """Return the id of a request. `request` is (task, queue, number of the request).

    Repeats get the same id. It has the shape of a UUIDv7 whose time part rises with the
    epoch, so that the ids of a run are neighbours in the primary key of `sent_batch`.
    """
    time_part = int.from_bytes(hashlib.sha256(run.encode()).digest()[:5], "big")
    random_part = hashlib.sha256(f"{run} {epoch} {request}".encode()).digest()
    value = ((time_part + epoch) & ((1 << 48) - 1)) << 80 | int.from_bytes(
        random_part[:10], "big"
    )
    # The bits of a UUID's version and variant.
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


class _Sender:
    def __init__(self, writer: _Writer, epoch: tuple[str, int], task: int) -> None:
        self._writer = writer
        self._run, self._epoch = epoch
        self._task = task
        self._brokers = HttpTransport(writer.urls, api_key=writer.api_key)
        self._pending: dict[int, list[dict[str, Any]]] = {}
        self._bytes: dict[int, int] = {}
        self._requests: dict[int, int] = {}
        self._sent = 0
        self._started = time.monotonic()

    def add(self, message: dict[str, Any]) -> None:
        layout = self._writer.layout
        if message.get("queue") is not None:
            queue = int(message["queue"])
        elif message.get("key") is not None:
            queue = layout.slots[slot_of(message["key"])]
        else:
            # Without a key any queue will do; a repeated task must choose the same.
            queue = layout.writable[self._task % len(layout.writable)]
        message["queue"] = queue
        pending, size = self._pending.setdefault(queue, []), len(message["body_bytes"])
        is_full = len(pending) >= self._writer.options.chunk_messages
        if pending and (is_full or self._bytes[queue] + size > MAX_REQUEST_BYTES):
            self._send(queue)
            pending = self._pending.setdefault(queue, [])
        pending.append(message)
        self._bytes[queue] = self._bytes.get(queue, 0) + size

    def finish(self) -> int:
        """Send the pending messages, and return the number of messages sent in total."""
        for queue in sorted(self._pending):
            self._send(queue)
        self._brokers.close()
        return self._sent

    def _send(self, queue: int) -> None:
        messages = self._pending.pop(queue)
        self._bytes[queue] = 0
        number = self._requests.get(queue, 0)
        self._requests[queue] = number + 1
        request_id = batch_id(self._run, self._epoch, (self._task, queue, number))
        topic = self._writer.options.topic
        send_request = partial(
            send,
            self._brokers,
            topic=topic,
            messages=messages,
            batch_id=request_id,
            timeout_s=REQUEST_TIMEOUT_S,
        )
        try:
            outcomes = repeat_call(
                send_request, within_s=DELIVERY_TIMEOUT_S, should_repeat=_should_repeat
            )
        except CatmqError as error:
            raise JobError(f"queue {queue} of topic {topic}: {error}") from None
        for outcome in outcomes:
            if isinstance(outcome, CatmqError):
                raise JobError(f"queue {queue}: a message was refused: {outcome.detail}")
        self._sent += len(messages)
        rate = self._writer.options.messages_per_second
        if rate:
            time.sleep(max(0.0, self._started + self._sent / rate - time.monotonic()))


def _should_repeat(error: CatmqError, tries: int) -> bool:
    """Return True for a temporary failure.

    A request is never split or moved to another queue, because its repeats must be
    identical.
    """
    return after_failure(error, kind=Kind.NAMED, messages=1, tries=tries) is NextStep.REPEAT


class _Writer:
    """The driver's decisions for all tasks: layout, run, columns. Pickled to the executors."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic cannot be overwritten: use .mode("append")')
        names = schema.fieldNames()
        unknown = [name for name in names if name not in SENDABLE_COLUMNS]
        if unknown or "body" not in names:
            problem = (
                f"column {unknown[0]} cannot be sent"
                if unknown
                else "column body is missing"
            )
            raise OptionError(
                f"{problem}; a write takes {', '.join(SENDABLE_COLUMNS)}: .select() them"
            )
        if not isinstance(schema["body"].dataType, (BinaryType, StringType)):
            raise OptionError("column body must be binary or string")
        self.options = options
        self.run = options.run_id or uuid7()
        brokers = plans.open_transport(options.url)
        # Executors do not have the driver's environment.
        self.api_key = os.environ["CATMQ_API_KEY"]
        try:
            path = api_path("topics", options.topic)
            answer = request_until(brokers, "GET", path, within_s=plans.PATIENCE_S)
            self.layout, self.urls = layout_from(answer), brokers.urls
        except CatmqError as error:
            raise JobError(
                f"topic {options.topic} cannot be written to: {error.detail}"
            ) from None
        finally:
            brokers.close()
        if not self.layout.writable:
            raise JobError(f"topic {options.topic} has no queue that takes messages")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        """Send the rows of a task, or of its share of a micro-batch. Raises JobError."""
        task = TaskContext.get()
        task_id = task.partitionId() if task is not None else 0
        query, epoch = (
            task.getLocalProperty(key) if task is not None else None
            for key in _STREAM_PROPERTIES
        )
        # After a restart a stream repeats a micro-batch: the same query and epoch give the
        # same ids.
        run = (query, int(epoch or 0)) if query else (self.run, 0)
        sender = _Sender(self, run, task_id)
        for batch in iterator:
            for row in batch.to_pylist():
                sender.add(_build_message(row))
        return SentMessages(sender.finish())

    def __repr__(self) -> str:
        return f"writes to topic {self.options.topic}"


def _build_message(row: Mapping[str, Any]) -> dict[str, Any]:
    body = row["body"]
    if body is None:
        raise JobError("a row has no body (null); give every message one, if an empty one")
    message: dict[str, Any] = {
        "body_bytes": body.encode() if isinstance(body, str) else bytes(body)
    }
    names = ("key", "tag", "trace_id", "queue")
    message |= {name: row[name] for name in names if row.get(name) is not None}
    if headers := row.get("headers"):
        is_json = isinstance(headers, str)
        message["headers"] = json.loads(headers) if is_json else dict(headers)
    return message


class CatmqWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a table."""


class CatmqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends the rows of a stream."""
