"""Members of share groups that ended, so that their leases can be released early.

The list is in the memory of the process that removed the members. If it is lost in a
crash, the leases run out by themselves, which only takes longer.
"""

from __future__ import annotations

from collections import deque

from django.db import transaction

MAX_MEMBERS = 10_000

_ended: deque[tuple[int, str]] = deque(maxlen=MAX_MEMBERS)


def note_ended(group_id: int, consumer_ids: list[str]) -> None:
    """Add the consumers to the list when the current transaction commits."""
    transaction.on_commit(
        lambda: _ended.extend((group_id, consumer_id) for consumer_id in consumer_ids)
    )


def take_ended() -> list[tuple[int, str]]:
    """Return and remove (group id, consumer id) of the members that ended since the last
    call.
    """
    return [_ended.popleft() for _ in range(len(_ended))]
