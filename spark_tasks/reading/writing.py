"""Writes: rows sent through the brokers, stored once however often a task or a run is
repeated.

The queue of every message is chosen from the layout that the driver saw, and each request
carries one queue and a batch id made of the run, the task, the queue and the request's
number. Spark repeats a task with the same rows in the same order, if what it reads has an
order (`sortWithinPartitions`); then its requests carry the same ids, and the broker answers
those it has stored already. `sent_batch` remembers for a day. A stream's run is its query,
so the same holds after a restart, unless the topic was expanded meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from catmq_client.sending.receipts import Outcome
from catmq_client.sending.routing import Kind, Layout, layout_from, slot_of
from catmq_client.sending.send_request import NextStep, after_failure, send
from spark_tasks.errors import JobError, OptionError
from spark_tasks.nodes import plans
from spark_tasks.reading.options import Options

SENDABLE = ("key", "tag", "headers", "body", "trace_id", "queue")
DELIVERY_S = 120.0  # a request is repeated for so long
TIMEOUT_S = 10.0  # of one try
MOST_BYTES = 1 << 20  # of bodies in one request
_TASK_KEYS = ("sql.streaming.queryId", "streaming.sql.batchId")


@dataclass
class Sent(WriterCommitMessage):
    """Count of messages that a task sent."""

    messages: int


def batch_id(run: str, epoch: int, place: tuple[int, int, int]) -> str:
    """The id of a request: of a run, its epoch, and (task, queue, number of the request
    there).

    The same each time, in the shape of a UUIDv7 whose time rises with the epoch, so that
    ids of one run lie together in `sent_batch`.
    """
    stem = int.from_bytes(hashlib.sha256(run.encode()).digest()[:5], "big")
    rest = hashlib.sha256(f"{run} {epoch} {place}".encode()).digest()
    value = ((stem + epoch) & ((1 << 48) - 1)) << 80 | int.from_bytes(rest[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


class _Sender:
    def __init__(self, writer: _Writing, epoch: tuple[str, int], task: int) -> None:
        self._writer = writer
        self._run, self._epoch = epoch
        self._task = task
        self._way = HttpTransport(writer.urls, api_key=writer.api_key)
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        self._bytes: dict[int, int] = {}
        self._requests: dict[int, int] = {}
        self._sent = 0
        self._begun = time.monotonic()

    def add(self, message: dict[str, Any]) -> None:
        queue = self._queue_of(message)
        message["queue"] = queue
        waiting, size = self._waiting.setdefault(queue, []), len(message["body_bytes"])
        full = len(waiting) >= self._writer.options.chunk_messages
        if waiting and (full or self._bytes[queue] + size > MOST_BYTES):
            self._send(queue)
            waiting = self._waiting.setdefault(queue, [])
        waiting.append(message)
        self._bytes[queue] = self._bytes.get(queue, 0) + size

    def finish(self) -> int:
        """Send the rest; return the number of messages sent in all."""
        for queue in sorted(self._waiting):
            self._send(queue)
        self._way.close()
        return self._sent

    def _queue_of(self, message: Mapping[str, Any]) -> int:
        layout = self._writer.layout
        given = message.get("queue")
        if given is not None:
            return int(given)
        if message.get("key") is not None:
            return layout.slots[slot_of(message["key"])]
        return layout.writable[self._task % len(layout.writable)]

    def _send(self, queue: int) -> None:
        messages = self._waiting.pop(queue)
        self._bytes[queue] = 0
        number = self._requests.get(queue, 0)
        self._requests[queue] = number + 1
        made = batch_id(self._run, self._epoch, (self._task, queue, number))
        topic = self._writer.options.topic

        def stored() -> list[Outcome]:
            return send(
                self._way,
                topic=topic,
                messages=messages,
                batch_id=made,
                timeout_s=TIMEOUT_S,
            )

        try:
            outcomes = repeat_call(stored, within_s=DELIVERY_S, should_repeat=_is_repeated)
        except CatmqError as error:
            raise JobError(f"queue {queue} of topic {topic}: {error}") from None
        for outcome in outcomes:
            if isinstance(outcome, CatmqError):
                raise JobError(f"queue {queue}: a message was refused: {outcome.detail}")
        self._sent += len(messages)
        self._pause()

    def _pause(self) -> None:
        rate = self._writer.options.messages_per_second
        if rate:
            time.sleep(max(0.0, self._begun + self._sent / rate - time.monotonic()))


def _is_repeated(error: CatmqError, tries: int) -> bool:
    """Return True for what passes; a request is never split or moved: its repeats must be
    the same.
    """
    return after_failure(error, kind=Kind.NAMED, messages=1, tries=tries) is NextStep.REPEAT


class _Writing:
    """Decisions of the driver for all tasks: the layout, the run, and the columns that are
    sent.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic cannot be overwritten: use .mode("append")')
        _check(schema)
        self.options = options
        self.run = options.run_id or uuid7()
        self.layout, self.urls, self.api_key = _route(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task, or of its part of a micro-batch. Raises JobError."""
        task = TaskContext.get()
        number = task.partitionId() if task is not None else 0
        query, epoch = (
            task.getLocalProperty(key) if task is not None else None for key in _TASK_KEYS
        )
        run = (query, int(epoch or 0)) if query else (self.run, 0)
        sender = _Sender(self, run, number)
        for batch in iterator:
            for row in batch.to_pylist():
                sender.add(_message(row))
        return Sent(sender.finish())

    def __repr__(self) -> str:
        return f"writes to topic {self.options.topic}"


def _check(schema: StructType) -> None:
    names = schema.fieldNames()
    unknown = [name for name in names if name not in SENDABLE]
    if unknown or "body" not in names:
        what = (
            f"column {unknown[0]} cannot be sent" if unknown else "column body is missing"
        )
        raise OptionError(f"{what}; a write takes {', '.join(SENDABLE)}: .select() them")
    if not isinstance(schema["body"].dataType, (BinaryType, StringType)):
        raise OptionError("column body must be binary or string")


def _route(options: Options) -> tuple[Layout, tuple[str, ...], str]:
    """(layout, broker URLs, API key) for all tasks."""
    way = plans.transport(options.url)
    try:
        path = api_path("topics", options.topic)
        layout = layout_from(request_until(way, "GET", path, within_s=plans.PATIENCE_S))
        urls = way.urls
    except CatmqError as error:
        raise JobError(
            f"topic {options.topic} cannot be written to: {error.detail}"
        ) from None
    finally:
        way.close()
    if not layout.writable:
        raise JobError(f"topic {options.topic} has no queue that takes messages")
    return layout, urls, os.environ["CATMQ_API_KEY"]


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    body = row["body"]
    if body is None:
        raise JobError("a row has no body (null); give every message one, if an empty one")
    message: dict[str, Any] = {
        "body_bytes": body.encode() if isinstance(body, str) else bytes(body)
    }
    for name in ("key", "tag", "trace_id", "queue"):
        if row.get(name) is not None:
            message[name] = row[name]
    headers = row.get("headers")
    if headers:
        message["headers"] = (
            json.loads(headers) if isinstance(headers, str) else dict(headers)
        )
    return message


class CatmqWriter(_Writing, DataSourceArrowWriter):
    """Sends a table."""


class CatmqStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Sends a stream."""
