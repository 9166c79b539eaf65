"""Heartbeats of Java clients that tell nothing new: noted in memory, and written down
together.

Such a client asks all the time for what it knows already. Its groups' generations tell
whether anything changed, so that it lives is all that there is to write: one UPDATE a
second for all clients of a process.
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
MOST_ROWS = 500  # of one statement
MOST_NEW = 20_000
_MEMBERS, _BEATS = ConsumerGroupConsumer._meta.db_table, Heartbeat._meta.db_table
_COLUMNS = "id, java_version, java_polled_at"

_guard = threading.Lock()
# that lived since the last flush → version that it has
_members: dict[int, int | None] = {}
_clients: set[int] = set()  # that asked for news, and of which this is to be written down
_new: set[int] = set()  # members that are to be looked at in full


def note(members: Mapping[int, int | None]) -> None:
    """Note that members live, with the version that each of them has, if it is known."""
    with _guard:
        _members.update(members)


def note_poll(java_id: int) -> None:
    """Note that a client asked for news; the first time it is written down at once."""
    if java_members.note_poll(java_id):
        with _guard:
            _clients.add(java_id)


def note_present(members: Iterable[int]) -> None:
    """Note that members were looked at in full, and are there."""
    with _guard:
        _new.difference_update(members)


def require_full_check(members: Iterable[int]) -> None:
    """Note that members are to be looked at in full."""
    with _guard:
        if len(_new) >= MOST_NEW:
            _new.clear()
        _new.update(members)


def needs_full_check(members: Iterable[int]) -> bool:
    """Return True if one of these members is to be looked at in full."""
    with _guard:
        return not _new.isdisjoint(members)


def flush() -> None:
    """Write down what was noted. Raises MetadataUnavailable, and then it is left for the
    next flush.
    """
    with _guard:
        members, clients = dict(_members), sorted(_clients)
        _members.clear()
        _clients.clear()
    try:
        with reachable():
            for some in chunks(clients, MOST_ROWS):
                # One without a time is to join its groups anew, and a time would hide that.
                mine = f"java_id IN ({placeholders(some)}) AND java_polled_at IS NOT NULL"
                statement = (
                    f"UPDATE {_MEMBERS} SET java_polled_at = {now_sql()} WHERE {mine}"  # noqa: S608
                )
                update(statement, some)
            for ids in chunks(sorted(members), MOST_ROWS):
                _record({one: members[one] for one in ids})
    except Exception:
        with _guard:
            _members.update(members)
            _clients.update(clients)
        raise


def _record(members: Mapping[int, int | None]) -> None:
    """Record that members live. Those that do not, or whose client is told something or
    polls no more, are looked at in full."""
    ids = sorted(members)
    there = (
        f"{_MEMBERS} JOIN {_BEATS} ON membership_id = id WHERE id IN ({placeholders(ids)})"
    )
    statement = f"SELECT {_COLUMNS}, {now_sql()} FROM {there}"  # noqa: S608
    same = [
        pk
        for pk, version, polled_at, now in select(statement, ids)
        if members[pk] in (None, version)
        and polled_at is not None
        and to_utc(polled_at) > before(to_utc(now), seconds=java_members.SILENT_S)
    ]
    if same:
        mine = f"membership_id IN ({placeholders(same)})"
        update(f"UPDATE {_BEATS} SET last_seen = {now_sql()} WHERE {mine}", same)  # noqa: S608
    contact.recorded()
    require_full_check(members.keys() - set(same))
