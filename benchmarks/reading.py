"""Pulls of stored messages through `messagestore.consume.pull`, by a process that owns the
queue.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

AT_ONCE = 500  # messages of a pull


class Span(NamedTuple):
    """Offsets first … end-1 of a topic's only queue."""

    topic: str
    queue: int
    first: int
    end: int


def head_of(queue: int) -> int:
    """The offset that the next message of a queue gets."""
    from messagestore.pool import node_pools
    from messagestore.tables import queue_sql

    with node_pools.node_of(queue).reading() as session:
        position = queue_sql.read_head(session, queue=queue)
    assert position is not None
    return position.head


def pulled_a_second(span: Span, *, seconds: float) -> float:
    """Messages a second that one process pulls from a span, over and over."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(span, seconds, theirs), daemon=True)
    process.start()
    rate = float(mine.recv())
    process.join(30)
    return rate


def _read(span: Span, seconds: float, out: Connection) -> None:
    import django

    django.setup()
    pulled = _owner(span)
    offset = pulled(span.first)  # connections and pages are warm before the clock runs
    begun, count = time.monotonic(), 0
    while (now := time.monotonic()) < begun + seconds:
        following = pulled(offset)
        count += following - offset
        offset = following if following + AT_ONCE <= span.end else span.first
    out.send(count / (now - begun))


def _owner(span: Span) -> Callable[[int], int]:
    """A function that pulls from an offset on and returns where to go on, as the queue's
    owner.
    """
    from messagestore.consume import positions
    from messagestore.consume.positions import Claim
    from messagestore.consume.pull import pull
    from messagestore.consume.pull_types import PullQueue
    from messagestore.topology import membership
    from metadata.actors import command
    from metadata.db import consumer_ids
    from metadata.membership import consumers

    group, actor = f"bench-{uuid.uuid4()}", command("bench")
    incarnation = str(uuid.uuid4())
    joined = membership.join(
        group=group, name="bench", incarnation=incarnation, topics=[span.topic], actor=actor
    )
    consumer = consumer_ids.check(joined.consumer_id)
    (given,) = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    (acquired,) = positions.acquire(
        consumer=consumer, queues=[Claim(given.queue, given.epoch)]
    )
    assert (acquired.state, given.queue) == ("ok", span.queue)

    def pulled(offset: int) -> int:
        asked = [PullQueue(span.queue, given.epoch, offset)]
        (answer,) = pull(
            consumer=consumer, queues=asked, max_messages=AT_ONCE, max_bytes=8 << 20
        )
        assert answer.rows, answer
        return answer.next_offset

    return pulled
