"""Memberships of Java clients, and the last answer that each client got.

A Java client identifies itself in all its groups by a number that a broker gave it.
The number contains the time at which it was made, so a client that has not joined a
group yet needs no row. A Java client knows a group by versions: it sends the version it
has, and gets whatever is newer. So each membership stores the last answer with its
version. Owners of queues are stored as for all other members.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from msgspec import Struct, structs

from metadata.db.clock import UtcNow, before, database_now, ms
from metadata.db.consumer_ids import ConsumerId, check
from metadata.db.transactions import reachable
from metadata.membership.heartbeats import expired_error
from metadata.models import ConsumerGroupConsumer
from metadata.rules.groups.states import GroupMode

RANDOM_BITS = 20  # low bits of a number; above them is the time in ms since 1970
# How long a client may take to join its first group: it asks twice and waits 10 s each
# time.
JOIN_S = 25.0
# Heartbeats of a client that has not polled for its assignment for this time do not
# count.
SILENT_S = 60.0
POLL_WRITE_S = 15.0  # the time of the last poll is written at most this often
CACHE_S = 15.0  # how long cached memberships are valid
MAX_CLIENTS = 20_000  # more than one process can serve


class LastAnswer(Struct, frozen=True):
    """The last answer that contained news for a client. Stored as JSON in the membership.

    `generation` is that of the group. `queues` is a digest of the owned queues,
    `content` one of the whole answer. `rb_version` and `meta_version` are the versions
    of the two parts.
    """

    generation: int = 0
    queues: str = ""
    content: str = ""
    rb_version: int = 0
    meta_version: int = 0


@dataclass(frozen=True, slots=True)
class JavaMember:
    """A membership of a Java client; `version` counts its answers (`last_answer`)."""

    java_id: int
    consumer: ConsumerId
    group: str
    version: int
    last_answer: LastAnswer = field(default_factory=LastAnswer)
    session_timeout_ms: int = 15_000
    broadcasts: bool = False

    @property
    def has_answer(self) -> bool:
        """Return True if the client has got an answer: versions begin at the time in its
        number.
        """
        return self.version > self.java_id >> RANDOM_BITS


class _CachedMembers(Struct, frozen=True):
    at: float  # time.monotonic()
    members: tuple[JavaMember, ...]

    def is_valid(self, versions: Mapping[str, int] | None) -> bool:
        """Return True if the entry is recent and the client has these versions of its
        groups.
        """
        same_versions = versions == {
            member.group: member.version for member in self.members
        }
        return same_versions and time.monotonic() - self.at < CACHE_S


_cache: dict[int, _CachedMembers] = {}  # by java_id
_polled: dict[int, float] = {}  # java_id → time.monotonic() when its poll was last written


def new_java_id() -> int:
    """Return a number for a client that registers. Raises MetadataUnavailable."""
    with reachable():
        return ms(database_now()) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)


def incarnation_of_client(java_id: int) -> str:
    """Return the number as the incarnation of a process, so that a repeated registration
    is recognized.
    """
    return str(UUID(int=java_id & (1 << 128) - 1))


def is_young(java_id: int) -> bool:
    """Return True if the number is so recent that its client may still be joining its
    first group.
    """
    with reachable():
        age_ms = ms(database_now()) - (java_id >> RANDOM_BITS)
    return abs(age_ms) < JOIN_S * 1000


def link_client(*, consumer: ConsumerId, java_id: int) -> None:
    """Mark a membership as that of a Java client. Does nothing if it is marked already.

    Its versions begin at the time in the client's number. A client that registers again
    may still hold versions of its former number, and the new versions must be above them.
    """
    forget_client(java_id)
    base = java_id >> RANDOM_BITS
    answer = structs.asdict(LastAnswer(rb_version=base, meta_version=base))
    with reachable():
        rows = _rows().filter(pk=consumer.member_id, consumer_id=consumer.text)
        rows.exclude(java_id=java_id).update(
            java_id=java_id, java_version=base, java_told=answer, java_polled_at=UtcNow()
        )


def memberships_of_client(
    java_id: int, *, versions: Mapping[str, int] | None = None
) -> list[JavaMember]:
    """Return the memberships of a client, by group name.

    If the client has the same `versions` as the cache, the cached memberships are
    returned without a query. A heartbeat finds out whether a membership has ended, and
    the guarded update of record_answer() whether another broker gave a newer answer.
    """
    cached = _cache.get(java_id)
    if cached and cached.is_valid(versions):
        return list(cached.members)
    with reachable():
        rows = (
            _rows().filter(java_id=java_id).select_related("group").order_by("group__name")
        )
        members = [
            JavaMember(
                java_id=row.java_id or 0,
                consumer=check(row.consumer_id),
                group=row.group.name,
                version=row.java_version,
                last_answer=LastAnswer(**(row.java_told or {})),
                session_timeout_ms=row.group.session_timeout_ms,
                broadcasts=row.group.mode == GroupMode.BROADCASTING,
            )
            for row in rows
        ]
    if len(_cache) >= MAX_CLIENTS:
        _cache.clear()
    _cache[java_id] = _CachedMembers(time.monotonic(), tuple(members))
    return members


def forget_client(java_id: int) -> None:
    """Remove a client from the cache, so that its memberships are read again."""
    _cache.pop(java_id, None)


def heartbeating_members(java_id: int) -> tuple[list[ConsumerId], bool]:
    """Return the memberships of a client whose heartbeat counts, and whether it has any
    membership.

    Raises Gone if the client has to join its groups again.
    """
    with reachable():
        rows = list(
            _rows().filter(java_id=java_id).values_list("consumer_id", "java_polled_at")
        )
        polled_after = before(database_now(), seconds=SILENT_S) if rows else None
    # require_rejoin() clears the time of the last poll.
    if any(polled_at is None for _, polled_at in rows):
        raise expired_error()
    polling = [
        check(consumer_id)
        for consumer_id, polled_at in rows
        if polled_at is not None and polled_after is not None and polled_at > polled_after
    ]
    return polling, bool(rows)


def find_consumer(member_id: int) -> ConsumerId | None:
    with reachable():
        consumer_id = (
            _rows()
            .filter(pk=member_id, java_id__isnull=False)
            .values_list("consumer_id", flat=True)
            .first()
        )
    return consumer_id and check(consumer_id)


def find_consumers(member_ids: Collection[int]) -> list[ConsumerId]:
    if not member_ids:
        return []
    with reachable():
        rows = _rows().filter(pk__in=member_ids, java_id__isnull=False)
        return [
            check(consumer_id) for consumer_id in rows.values_list("consumer_id", flat=True)
        ]


def note_poll(java_id: int) -> bool:
    """Note that a client polled now. Return True if the caller has to write it to the
    database.

    The first poll that this process sees is written here at once.
    """
    now, written_at = time.monotonic(), _polled.get(java_id)
    if written_at is not None and now - written_at < POLL_WRITE_S:
        return False
    if written_at is None:
        if len(_polled) >= MAX_CLIENTS:
            _polled.clear()
        with reachable():
            _rows().filter(java_id=java_id).update(java_polled_at=UtcNow())
    _polled[java_id] = now
    return written_at is not None


def has_polled(java_id: int) -> bool:
    """Return True if this process has seen a poll of the client, so that the next note
    needs no query.
    """
    return java_id in _polled


def require_rejoin(java_id: int) -> None:
    """Make the next heartbeat of a client fail, so that it joins all its groups again.

    Called when the client lacks one of its memberships.
    """
    forget_client(java_id)
    _polled.pop(java_id, None)
    with reachable():
        _rows().filter(java_id=java_id).update(java_polled_at=None)


def record_answer(*, member: JavaMember, answer: LastAnswer) -> bool:
    """Store the next answer to a client, under the next version.

    Return False if another broker stored an answer meanwhile.
    """
    forget_client(member.java_id)
    with reachable():
        unchanged_row = _rows().filter(
            pk=member.consumer.member_id,
            consumer_id=member.consumer.text,
            java_version=member.version,
        )
        updated_count: int = unchanged_row.update(
            java_version=member.version + 1, java_told=structs.asdict(answer)
        )
        return updated_count > 0


def _rows() -> Any:
    return ConsumerGroupConsumer.objects.all()
