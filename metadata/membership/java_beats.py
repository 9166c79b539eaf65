"""Heartbeats of Java clients that tell nothing new: noted in memory, and written down together.

Such a client asks all the time for what it knows already. Its groups' generations tell whether anything
changed, so that it lives is all that there is to write: one UPDATE a second for all clients of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from metadata.db.clock import UtcNow
from metadata.db.contact import contact
from metadata.db.transactions import reachable
from metadata.grouping import chunks
from metadata.models import ConsumerGroupConsumer, Heartbeat

FLUSH_S = 1.0
MOST_ROWS = 500  # of one statement
MOST_ENDED = 20_000

_guard = threading.Lock()
_members: set[int] = set()  # that lived since the last flush
_clients: set[int] = set()  # that asked for news, and of which this is to be written down
_ended: set[int] = set()  # members that are to be looked at in full


def note(members: Iterable[int]) -> None:
    """Note that members live."""
    with _guard:
        _members.update(members)


def note_poll(java_id: int) -> None:
    """Note that a client asked for news."""
    with _guard:
        _clients.add(java_id)


def note_found(members: Iterable[int]) -> None:
    """Note that members were looked at in full, and are there."""
    with _guard:
        _ended.difference_update(members)


def note_ended(members: Iterable[int]) -> None:
    """Note that members are to be looked at in full."""
    with _guard:
        if len(_ended) >= MOST_ENDED:
            _ended.clear()
        _ended.update(members)


def have_ended(members: Iterable[int]) -> bool:
    """Return True if one of these members was found to have left, to have expired, or to lack another one
    of its client."""
    with _guard:
        return not _ended.isdisjoint(members)


def flush() -> None:
    """Write down what was noted. Raises MetadataUnavailable, and then it is left for the next flush."""
    with _guard:
        members, clients = sorted(_members), sorted(_clients)
        _members.clear()
        _clients.clear()
    try:
        with reachable():
            for some in chunks(members, MOST_ROWS):
                _record(some)
            for some in chunks(clients, MOST_ROWS):
                # One without a time is to join its groups anew, and a time would hide that.
                rows = ConsumerGroupConsumer.objects.filter(java_id__in=some, java_polled_at__isnull=False)
                rows.update(java_polled_at=UtcNow())
    except Exception:
        with _guard:
            _members.update(members)
            _clients.update(clients)
        raise


def _record(members: Sequence[int]) -> None:
    """Record that members live, and remember those that do not, or whose client is to join anew."""
    rows = Heartbeat.objects.filter(pk__in=members)
    alive = list(rows.filter(membership__java_polled_at__isnull=False).values_list("pk", flat=True))
    rows.filter(pk__in=alive).update(last_seen=UtcNow())
    contact.recorded()
    note_ended(set(members) - set(alive))
