"""Members that are Java clients: which memberships a client has, and what each was told
last.

A Java client calls itself by a number that a broker gave it, in all its groups. The number
holds the time at which it was made, so a client that has not joined a group yet needs no
row. To such a client a group is known by versions: it says which one it has, and gets
whatever is newer. So each membership keeps the version of what its client was told, as
`LastAnswer`; who owns what is kept where it is for all members.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from metadata.db.clock import UtcNow, before, database_now, ms
from metadata.db.consumer_ids import ConsumerId, check
from metadata.db.transactions import reachable
from metadata.membership.heartbeats import expired_error
from metadata.models import ConsumerGroupConsumer

RANDOM_BITS = 20  # of a number; the time in ms since 1970 stands above them
# how long a client may take to join its first group: it asks twice, waits 10 s each time
YOUNG_S = 25.0
# heartbeats of a client that asked for no assignment for so long do not count
SILENT_S = 60.0
NOTE_S = 15.0  # the time of its last question is not written more often
KNOWN_S = 15.0  # for which memberships that were read are believed
MOST_KNOWN = 20_000  # clients; more than one process can serve


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """Contents of the last answer with news: the `generation` of the group, digests of the
    queues to own and of everything about them, and the versions of both."""

    generation: int = 0
    queues: str = ""
    content: str = ""
    rb_version: int = 0
    meta_version: int = 0


@dataclass(frozen=True, slots=True)
class JavaMember:
    """A membership of a Java client; `version` is that of what it was `told`."""

    java_id: int
    consumer: ConsumerId
    group: str
    version: int
    told: LastAnswer = field(default_factory=LastAnswer)
    session_timeout_ms: int = 15_000
    broadcasts: bool = False

    @property
    def was_told(self) -> bool:
        """True if its client was given a version: they begin above the time of its number."""
        return self.version > self.java_id >> RANDOM_BITS


@dataclass(frozen=True, slots=True)
class _Known:
    at: float  # time.monotonic()
    members: tuple[JavaMember, ...]

    def is_valid(self, versions: Mapping[str, int] | None) -> bool:
        """Return True for a client that has these versions, if they are not too old."""
        same = versions == {one.group: one.version for one in self.members}
        return same and time.monotonic() - self.at < KNOWN_S


_known: dict[int, _Known] = {}  # by client, as this process read them
_polled: dict[int, float] = {}  # client → time.monotonic() of the last note of its poll


def new_java_id() -> int:
    """Return a number for a client that registers. Raises MetadataUnavailable."""
    with reachable():
        return ms(database_now()) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)


def incarnation_of_client(java_id: int) -> str:
    """Return the number as the incarnation of a process, so that a repeat of its
    registration is known.
    """
    return str(UUID(int=java_id & (1 << 128) - 1))


def is_young(java_id: int) -> bool:
    """Return True if a number was given so recently that its client may be on the way to
    its first group.
    """
    with reachable():
        age_ms = ms(database_now()) - (java_id >> RANDOM_BITS)
    return abs(age_ms) < YOUNG_S * 1000


def link_client(*, consumer: ConsumerId, java_id: int) -> None:
    """Note that a membership is that of a client; one that it has already stays as it is.

    Its versions begin at the time of the client's number. A client that registers anew may
    have versions of its former number in hand, and must find the new ones above them.
    """
    forget_client(java_id)
    base = java_id >> RANDOM_BITS
    told = asdict(LastAnswer(rb_version=base, meta_version=base))
    with reachable():
        rows = _rows().filter(pk=consumer.member_id, consumer_id=consumer.text)
        rows.exclude(java_id=java_id).update(
            java_id=java_id, java_version=base, java_told=told, java_polled_at=UtcNow()
        )


def memberships_of_client(
    java_id: int, *, versions: Mapping[str, int] | None = None
) -> list[JavaMember]:
    """Return the memberships of a client, by group.

    Who says that it has the `versions` that this process knows is not looked up: a
    heartbeat tells whether a membership has ended, and a guarded update whether another
    broker told something newer.
    """
    known = _known.get(java_id)
    if known and known.is_valid(versions):
        return list(known.members)
    with reachable():
        rows = (
            _rows().filter(java_id=java_id).select_related("group").order_by("group__name")
        )
        found = [_member(row) for row in rows]
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[java_id] = _Known(time.monotonic(), tuple(found))
    return found


def forget_client(java_id: int) -> None:
    """Look a client up again next time."""
    _known.pop(java_id, None)


def heartbeating_members(java_id: int) -> tuple[list[ConsumerId], bool]:
    """Return the memberships of a client for which a heartbeat counts, and whether it has
    any at all.

    Raises Gone for a client that is to join its groups anew.
    """
    with reachable():
        rows = list(
            _rows().filter(java_id=java_id).values_list("consumer_id", "java_polled_at")
        )
        asked_after = before(database_now(), seconds=SILENT_S) if rows else None
    if any(at is None for _, at in rows):
        raise expired_error()
    alive = [
        check(text)
        for text, at in rows
        if at is not None and asked_after is not None and at > asked_after
    ]
    return alive, bool(rows)


def find_consumer(member_id: int) -> ConsumerId | None:
    """Return the consumer id of a Java client's membership, None if there is none of that
    number.
    """
    with reachable():
        rows = (
            _rows()
            .filter(pk=member_id, java_id__isnull=False)
            .values_list("consumer_id", flat=True)
        )
        text = rows.first()
    return None if text is None else check(text)


def find_consumers(member_ids: Collection[int]) -> list[ConsumerId]:
    """Return the consumer ids of the memberships of Java clients among these, with one
    statement.
    """
    if not member_ids:
        return []
    with reachable():
        rows = _rows().filter(pk__in=member_ids, java_id__isnull=False)
        return [check(text) for text in rows.values_list("consumer_id", flat=True)]


def note_poll(java_id: int) -> bool:
    """Note that a client asked now; True if that is to be written down. The first time it
    is done here.
    """
    now, noted_at = time.monotonic(), _polled.get(java_id)
    if noted_at is not None and now - noted_at < NOTE_S:
        return False
    if noted_at is None:
        if len(_polled) >= MOST_KNOWN:
            _polled.clear()
        with reachable():
            _rows().filter(java_id=java_id).update(java_polled_at=UtcNow())
    _polled[java_id] = now
    return noted_at is not None


def has_polled(java_id: int) -> bool:
    """Return True if this process has noted that a client asks for news, so that noting it
    again is a matter of memory."""
    return java_id in _polled


def require_rejoin(java_id: int) -> None:
    """Note that a client lacks one of its memberships: its heartbeats tell it to join all
    its groups anew.
    """
    forget_client(java_id)
    _polled.pop(java_id, None)
    with reachable():
        _rows().filter(java_id=java_id).update(java_polled_at=None)


def record_answer(*, member: JavaMember, told: LastAnswer) -> bool:
    """Note what a client is told next, under the next version; False if another broker was
    quicker.
    """
    forget_client(member.java_id)
    with reachable():
        mine = _rows().filter(
            pk=member.consumer.member_id,
            consumer_id=member.consumer.text,
            java_version=member.version,
        )
        return int(mine.update(java_version=member.version + 1, java_told=asdict(told))) > 0


def _rows() -> Any:
    return ConsumerGroupConsumer.objects.all()


def _member(row: ConsumerGroupConsumer) -> JavaMember:
    told: Mapping[str, Any] = row.java_told or {}
    return JavaMember(
        java_id=row.java_id or 0,
        consumer=check(row.consumer_id),
        group=row.group.name,
        version=row.java_version,
        told=LastAnswer(**told),
        session_timeout_ms=row.group.session_timeout_ms,
        broadcasts=row.group.mode == row.group.Mode.BROADCASTING,
    )
