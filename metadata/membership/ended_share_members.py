"""Members of share groups that ended, for whoever frees the runs that they leased.

A list in the memory of the process that ended them. What a crash loses of it costs time
only: the leases run out.
"""

from __future__ import annotations

from collections import deque

from django.db import transaction

MOST = 10_000

_ended: deque[tuple[int, str]] = deque(maxlen=MOST)


def note_ended(group_id: int, consumer_ids: list[str]) -> None:
    """Note that consumers of a group end with the transaction under way."""
    transaction.on_commit(lambda: _ended.extend((group_id, one) for one in consumer_ids))


def take_ended() -> list[tuple[int, str]]:
    """(group, consumer id) of those that ended since the last call."""
    found = []
    while _ended:
        found.append(_ended.popleft())
    return found
