"""The work of a handler: it waits, and writes down when it began, ended or was cancelled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from catmq_client.aio import AsyncConsumer
from catmq_client.message import Message
from tests.support.journal import Journal

MAX_WORK_S = 0.02
# One handler of so many takes LONG_S, so that a restart interrupts some.
LONG_EVERY, LONG_S = 50, 2.0


@contextmanager
def noted(journal: Journal, message: Message) -> Iterator[None]:
    """Write the beginning and the end of a handler to the journal."""
    place: dict[str, Any] = {
        "queue": message.queue,
        "offset": message.offset,
        "name": message.text,
        "attempt": message.attempt,
    }
    journal.tell("begin", **place)
    try:
        yield
    except BaseException as error:
        journal.tell("broken", error=repr(error), **place)
        raise
    journal.tell("end", **place)


async def work() -> None:
    is_long = random.randrange(LONG_EVERY) == 0
    await asyncio.sleep(LONG_S if is_long else random.uniform(0, MAX_WORK_S))


def new_consumer() -> AsyncConsumer:
    """Return the consumer of this process. A restarted process continues with its queues."""
    return AsyncConsumer(
        group=os.environ["WEB_GROUP"],
        topics=[os.environ["WEB_TOPIC"]],
        instance_id=os.environ["WEB_INSTANCE"],
    )


def end(consumer: AsyncConsumer, consuming: asyncio.Task[None]) -> None:
    """End run(): by stop(), or by a cancellation, as the scenario chose for this process."""
    if os.environ["WEB_END"] == "stop":
        consumer.stop()
    else:
        consuming.cancel()
