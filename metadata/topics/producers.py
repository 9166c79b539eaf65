"""Producers of topics: who sent to a topic lately, from which address and with which
client.

A request only adds to a count in memory; a loop of each worker writes the counts down
(`flush`), so a worker that is killed loses half a minute of them and nothing else. Who
sends under ever new names pushes out only those of the same topic that were seen before all
others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest

from django.db.models import Case, Count, F, Value, When

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import UtcNow, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import chunks, grouped
from metadata.models import TopicProducer
from metadata.topics import topic_rows

FLUSH_S = 20.0
LATE_MS = 60_000  # so long after its first message a producer may be written down
KEPT_DAYS = 7
MOST = 200  # rows of a topic
# producers that a process counts between two flushes; further ones are left out
MOST_COUNTED = 5_000
MOST_CHARS = 100
AT_ONCE = 200  # rows in one UPDATE
HOUR_S = 3600
Key = tuple[int, str, str, str]  # topic, name, address, client


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer of a topic; `messages_last_hour` is an estimate from the counts of two
    clock hours.
    """

    name: str
    address: str
    sdk: str
    first_seen_at_ms: int
    last_seen_at_ms: int
    messages_last_hour: int


class _Counts:
    """Messages of each producer since they were last written down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, int] = {}

    def add(self, key: Key, messages: int) -> None:
        with self._lock:
            if key in self._counts or len(self._counts) < MOST_COUNTED:
                self._counts[key] = self._counts.get(key, 0) + messages

    def take(self) -> dict[Key, int]:
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken


_counts = _Counts()


def count_sent(
    *, topic_id: int, actor: Actor, address: str, sdk: str, messages: int
) -> None:
    """Count what a client sent to a topic."""
    _counts.add(
        (topic_id, actor.name, address[:MOST_CHARS], sdk[:MOST_CHARS].strip()), messages
    )


def flush() -> int:
    """Write down what this process counted; return of how many producers. A loop of every
    worker.

    Raises MetadataUnavailable; what was counted is kept for the next pass then.
    """
    counts = _counts.take()
    if not counts:
        return 0
    try:
        _write(_most_active(counts))
    except BaseException:
        for key, messages in counts.items():
            _counts.add(key, messages)
        raise
    return len(counts)


def list_producers(*, topic: str, actor: Actor) -> list[ProducerView]:
    """Return the producers of a topic, the last one first. Needs any right on it.

    Raises NotFound(topic_not_found), Forbidden.
    """
    topic_id = topic_rows.find_topic(name=topic, actor=actor).id
    with reachable():
        now = database_now()
        rows = TopicProducer.objects.filter(topic_ref=topic_id).order_by("-last_seen", "pk")
        return [_view(row, now) for row in rows]


def list_clients(*, topic: str, name: str, at_ms: int, actor: Actor) -> list[ProducerView]:
    """Return from where, and with which clients, a producer sent to a topic around a time,
    the last first.

    None are known for an actor without a right on the topic, and for a time before
    KEPT_DAYS.
    """
    if not access.may_see(actor, topic):
        return []
    return [
        one
        for one in list_producers(topic=topic, actor=actor)
        if one.name == name
        and one.first_seen_at_ms - LATE_MS <= at_ms <= one.last_seen_at_ms
    ]


def _view(row: TopicProducer, now: datetime) -> ProducerView:
    return ProducerView(
        name=row.name,
        address=row.address,
        sdk=row.sdk,
        first_seen_at_ms=ms(row.first_seen),
        last_seen_at_ms=ms(row.last_seen),
        messages_last_hour=last_hour(
            row.messages, row.messages_before, hour=row.hour, now_s=now.timestamp()
        ),
    )


def last_hour(messages: int, before: int, *, hour: int, now_s: float) -> int:
    """Estimate the messages of the last hour from those of a clock hour and of the one
    before it.

    >>> last_hour(30, 100, hour=10, now_s=10.25 * HOUR_S)  # 30 in this quarter, and 3/4 of 100
    105
    >>> (last_hour(30, 100, hour=9, now_s=10.25 * HOUR_S),
    ...  last_hour(30, 100, hour=8, now_s=10.25 * HOUR_S)) (22, 0)
    """
    this, part = divmod(now_s / HOUR_S, 1)
    if hour < this:
        messages, before = 0, messages if hour == this - 1 else 0
    return messages + round(before * (1 - part))


def _most_active(counts: Mapping[Key, int]) -> dict[Key, int]:
    """Return the counts without those of a topic beyond the `MOST` that sent the most."""
    by_topic = grouped((key[0], (messages, key)) for key, messages in counts.items())
    return {
        key: messages
        for found in by_topic.values()
        for messages, key in nlargest(MOST, found)
    }


@transactional
def _write(counts: Mapping[Key, int]) -> None:
    now = database_now()
    hour = int(now.timestamp()) // HOUR_S
    topics = {key[0] for key in counts}
    missing = counts.keys() - _rows(topics).keys()
    TopicProducer.objects.bulk_create(
        [
            TopicProducer(**_columns(key), hour=hour, first_seen=now, last_seen=now)
            for key in sorted(missing)
        ],
        ignore_conflicts=True,  # another process may make the same
        batch_size=AT_ONCE,
    )
    known = _rows(topics)
    new = sorted((known[key], messages) for key, messages in counts.items() if key in known)
    for some in chunks(new, AT_ONCE):
        rows = TopicProducer.objects.filter(pk__in=[pk for pk, _ in some])
        # MySQL sets one column after the other, so the one that is copied comes first.
        rows.filter(hour=hour - 1).update(
            messages_before=F("messages"), messages=0, hour=hour
        )
        rows.filter(hour__lt=hour - 1).update(messages_before=0, messages=0, hour=hour)
        cases = [When(pk=pk, then=Value(messages)) for pk, messages in some]
        rows.update(
            messages=F("messages") + Case(*cases, default=Value(0)), last_seen=UtcNow()
        )
    _make_room(topics)


def _columns(key: Key) -> dict[str, int | str]:
    return dict(zip(("topic_ref", "name", "address", "sdk"), key, strict=True))


def _rows(topics: Iterable[int]) -> dict[Key, int]:
    rows = TopicProducer.objects.filter(topic_ref__in=sorted(topics))
    return {
        (topic, *who): pk
        for pk, topic, *who in rows.values_list("pk", *_columns((0, "", "", "")))
    }


def _make_room(topics: Iterable[int]) -> None:
    """Delete the rows of a topic beyond `MOST`, those first that were seen before the
    others.
    """
    sizes = (
        TopicProducer.objects.filter(topic_ref__in=sorted(topics))
        .order_by()
        .values("topic_ref")
    )
    for topic in (
        sizes.annotate(size=Count("pk"))
        .filter(size__gt=MOST)
        .values_list("topic_ref", flat=True)
    ):
        rows = TopicProducer.objects.filter(topic_ref=topic)
        surplus = list(
            rows.order_by("-last_seen", "-pk").values_list("pk", flat=True)[MOST:]
        )
        for some in chunks(surplus, AT_ONCE):
            rows.filter(pk__in=some).delete()


prune = PruneRule(TopicProducer.objects.all(), "last_seen", KEPT_DAYS)
