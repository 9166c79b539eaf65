"""Heartbeats of Java clients without news: noted in memory and written in batches.

Java clients keep polling with the version that they have. While the generations of
their groups stand still, only the heartbeat has to be written: an UPDATE a second for
all clients of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from metadata.db.clock import before, now_sql, to_utc
from metadata.db.contact import contact
from metadata.db.rows import placeholders, select, update
from metadata.db.transactions import reachable
from metadata.grouping import chunks
from metadata.membership import java_members
from metadata.models import ConsumerGroupConsumer, Heartbeat

FLUSH_S = 1.0
MAX_ROWS = 500  # per statement
MAX_TO_CHECK = 20_000
_MEMBERS, _BEATS = (
    ConsumerGroupConsumer._meta.db_table,
    Heartbeat._meta.db_table,
)
_COLUMNS = "id, java_version, java_polled_at"

_lock = threading.Lock()
# Members that sent a heartbeat since the last flush → the version that each has, None if
# unknown.
_alive: dict[int, int | None] = {}
_polled: set[int] = set()  # clients (java_id) whose poll is to be written
_to_check: set[int] = set()  # members whose next poll needs a full check


def note(members: Mapping[int, int | None]) -> None:
    """Note heartbeats of members, with the version that each has, None if unknown."""
    with _lock:
        _alive.update(members)


def note_poll(java_id: int) -> None:
    """Note that a client polled. Its first poll is written at once."""
    if java_members.note_poll(java_id):
        with _lock:
            _polled.add(java_id)


def note_present(members: Iterable[int]) -> None:
    """Note that the full check of these members found them alive."""
    with _lock:
        _to_check.difference_update(members)


def require_full_check(members: Iterable[int]) -> None:
    with _lock:
        if len(_to_check) >= MAX_TO_CHECK:
            _to_check.clear()
        _to_check.update(members)


def needs_full_check(members: Iterable[int]) -> bool:
    with _lock:
        return not _to_check.isdisjoint(members)


def flush() -> None:
    """Write the noted heartbeats and polls.

    Raises MetadataUnavailable, and keeps them for the next flush.
    """
    with _lock:
        alive, polled = dict(_alive), sorted(_polled)
        _alive.clear()
        _polled.clear()
    try:
        with reachable():
            for java_ids in chunks(polled, MAX_ROWS):
                # A membership without a time must rejoin (java_members.require_rejoin); a
                # new time would hide that.
                condition = (
                    f"java_id IN ({placeholders(java_ids)}) AND java_polled_at IS NOT NULL"
                )
                statement = (
                    f"UPDATE {_MEMBERS} SET java_polled_at = {now_sql()} WHERE {condition}"  # noqa: S608
                )
                update(statement, java_ids)
            for ids in chunks(sorted(alive), MAX_ROWS):
                source = f"{_MEMBERS} JOIN {_BEATS} ON membership_id = id"
                condition = f"id IN ({placeholders(ids)})"
                statement = (
                    f"SELECT {_COLUMNS}, {now_sql()} FROM {source} WHERE {condition}"  # noqa: S608
                )
                unchanged = [
                    pk
                    for pk, version, polled_at, now in select(statement, ids)
                    if alive[pk] in (None, version)
                    and polled_at is not None
                    and to_utc(polled_at)
                    > before(to_utc(now), seconds=java_members.SILENT_S)
                ]
                if unchanged:
                    condition = f"membership_id IN ({placeholders(unchanged)})"
                    statement = (
                        f"UPDATE {_BEATS} SET last_seen = {now_sql()} WHERE {condition}"  # noqa: S608
                    )
                    update(statement, unchanged)
                contact.recorded()
                # These are gone, have a newer answer, or stopped polling.
                require_full_check(set(ids) - set(unchanged))
    except Exception:
        with _lock:
            _alive.update(alive)
            _polled.update(polled)
        raise
