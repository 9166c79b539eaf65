"""Producers of topics: which API keys and users sent to a topic lately, from which address
and with which client.

A request only adds to a count in memory. A loop of each worker writes the counts to the
database (`flush`), so a worker that is killed loses about half a minute of counts. A
producer that sends under ever new names displaces only rows of the same topic, those that
were seen least recently.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Annotated

from django.db.models import Case, Count, F, Value, When
from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import UtcNow, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import chunks, grouped
from metadata.models import TopicProducer
from metadata.rules.wire import Number
from metadata.topics import topic_rows

FLUSH_S = 20.0
LATE_MS = 60_000  # maximum delay between a first message and its row in the database
KEPT_DAYS = 7
MAX_ROWS = 200  # of a topic
# Producers that a process counts between two flushes. Further producers are not counted.
MAX_COUNTED = 5_000
MAX_CHARS = 100
AT_ONCE = 200  # rows per UPDATE
HOUR_S = 3600
Key = tuple[int, str, str, str]  # topic, name, address, client


class ProducerView(Struct, frozen=True):
    """A producer of a topic: an API key at an address, with a client."""

    name: Annotated[
        str,
        Meta(description="name of the API key; java for Java clients without one"),
    ]
    address: Annotated[
        str,
        Meta(
            description="address it sent from; of a Java client, the one that it gives itself"
        ),
    ]
    sdk: Annotated[
        str, Meta(description="name and version of the client, by its User-Agent")
    ]
    first_seen_at_ms: Annotated[
        Number, Meta(description="time of its first message, ms since 1970 UTC")
    ]
    last_seen_at_ms: Annotated[
        Number,
        Meta(description="time of its last message, to about 20 s, ms since 1970 UTC"),
    ]
    # From the counts of two clock hours.
    messages_last_hour: Annotated[
        Number,
        Meta(description="estimated number of messages that it sent in the last hour"),
    ]


class _Counts:
    """Messages of each producer since the last flush."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, int] = {}

    def add(self, key: Key, messages: int) -> None:
        with self._lock:
            if key in self._counts or len(self._counts) < MAX_COUNTED:
                self._counts[key] = self._counts.get(key, 0) + messages

    def take(self) -> dict[Key, int]:
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


_counts = _Counts()


def count_sent(
    *, topic_id: int, actor: Actor, address: str, sdk: str, messages: int
) -> None:
    _counts.add(
        (topic_id, actor.name, address[:MAX_CHARS], sdk[:MAX_CHARS].strip()), messages
    )


def flush() -> int:
    """Write the counts of this process to the database. Return the number of producers. Run
    by a loop of every worker.

    Raises MetadataUnavailable. The counts are kept for the next flush then.
    """
    counts = _counts.take()
    if not counts:
        return 0
    try:
        # At most MAX_ROWS producers of each topic, those that sent most. More would be
        # deleted again after they were written.
        by_topic = grouped((key[0], (messages, key)) for key, messages in counts.items())
        _write(
            {
                key: messages
                for counted in by_topic.values()
                for messages, key in nlargest(MAX_ROWS, counted)
            }
        )
    # Added, because requests have counted more since they were taken.
    except BaseException:
        for key, messages in counts.items():
            _counts.add(key, messages)
        raise
    return len(counts)


def list_producers(*, topic: str, actor: Actor) -> list[ProducerView]:
    """Return the producers of a topic, the most recent first. Needs any right on it.

    Raises NotFound(topic_not_found), Forbidden.
    """
    topic_id = topic_rows.find_topic(name=topic, actor=actor).id
    with reachable():
        now = database_now()
        rows = TopicProducer.objects.filter(topic_ref=topic_id).order_by("-last_seen", "pk")
        return [
            ProducerView(
                name=row.name,
                address=row.address,
                sdk=row.sdk,
                first_seen_at_ms=ms(row.first_seen),
                last_seen_at_ms=ms(row.last_seen),
                messages_last_hour=last_hour(
                    row.messages,
                    row.messages_before,
                    hour=row.hour,
                    now_s=now.timestamp(),
                ),
            )
            for row in rows
        ]


def list_clients(*, topic: str, name: str, at_ms: int, actor: Actor) -> list[ProducerView]:
    """Return the addresses and clients from which a producer sent to a topic around a time,
    the most recent first.

    Empty if the actor has no right on the topic, or for a time before KEPT_DAYS.
    """
    if not access.may_see(actor, topic):
        return []
    return [
        producer
        for producer in list_producers(topic=topic, actor=actor)
        if producer.name == name
        and producer.first_seen_at_ms - LATE_MS <= at_ms <= producer.last_seen_at_ms
    ]


def last_hour(messages: int, before: int, *, hour: int, now_s: float) -> int:
    """Estimate the messages of the last 60 minutes from those of the clock hour `hour` and
    of the hour before it.

    >>> last_hour(30, 100, hour=10, now_s=10.25 * HOUR_S)  # 30 in this quarter, and 3/4 of 100
    105
    >>> last_hour(30, 100, hour=9, now_s=10.25 * HOUR_S)
    22
    >>> last_hour(30, 100, hour=8, now_s=10.25 * HOUR_S)
    0
    """
    this_hour, elapsed = divmod(now_s / HOUR_S, 1)
    if hour < this_hour:
        messages, before = 0, messages if hour == this_hour - 1 else 0
    # As if the messages of the hour before had been sent evenly.
    return messages + round(before * (1 - elapsed))


@transactional
def _write(counts: Mapping[Key, int]) -> None:
    now = database_now()
    hour = int(now.timestamp()) // HOUR_S
    topics = {key[0] for key in counts}
    missing = counts.keys() - _row_ids(topics).keys()
    TopicProducer.objects.bulk_create(
        [
            TopicProducer(**_columns(key), hour=hour, first_seen=now, last_seen=now)
            for key in sorted(missing)
        ],
        ignore_conflicts=True,  # another process may insert the same row
        batch_size=AT_ONCE,
    )
    # Read again, for the ids of the new rows. A row may also have been pruned meanwhile.
    ids = _row_ids(topics)
    # Sorted by id, so that two processes lock rows in the same order.
    additions = sorted(
        (ids[key], messages) for key, messages in counts.items() if key in ids
    )
    for batch in chunks(additions, AT_ONCE):
        rows = TopicProducer.objects.filter(pk__in=[pk for pk, _ in batch])
        # MySQL assigns columns from left to right and uses the new values, so the copy must
        # come before the zero.
        rows.filter(hour=hour - 1).update(
            messages_before=F("messages"), messages=0, hour=hour
        )
        rows.filter(hour__lt=hour - 1).update(messages_before=0, messages=0, hour=hour)
        cases = [When(pk=pk, then=Value(messages)) for pk, messages in batch]
        rows.update(
            messages=F("messages") + Case(*cases, default=Value(0)), last_seen=UtcNow()
        )
    # Beyond MAX_ROWS the rows of a topic that were seen least recently are deleted.
    sizes = (
        TopicProducer.objects.filter(topic_ref__in=sorted(topics))
        .order_by()
        .values("topic_ref")
        .annotate(size=Count("pk"))
    )
    for topic in sizes.filter(size__gt=MAX_ROWS).values_list("topic_ref", flat=True):
        rows = TopicProducer.objects.filter(topic_ref=topic)
        surplus = list(
            rows.order_by("-last_seen", "-pk").values_list("pk", flat=True)[MAX_ROWS:]
        )
        for pks in chunks(surplus, AT_ONCE):
            rows.filter(pk__in=pks).delete()


def _columns(key: Key) -> dict[str, int | str]:
    return dict(zip(("topic_ref", "name", "address", "sdk"), key, strict=True))


def _row_ids(topics: Iterable[int]) -> dict[Key, int]:
    rows = TopicProducer.objects.filter(topic_ref__in=sorted(topics))
    return {
        (topic, *producer): pk
        for pk, topic, *producer in rows.values_list("pk", *_columns((0, "", "", "")))
    }


prune = PruneRule(TopicProducer.objects.all(), "last_seen", KEPT_DAYS)
