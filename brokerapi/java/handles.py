"""Ids of queues as Java clients get them: the member that may read the queue, and the
queue.

These clients name no consumer when they pull, commit or report a failure. They only repeat
the id of a queue that they were told. Since it holds the member, what a former owner asks
for is told from what the owner does.
"""

from __future__ import annotations

from collections.abc import Iterable

from metadata.db.consumer_ids import ConsumerId
from metadata.membership import java_members

QUEUE_BITS = 31  # ids of queues and of members stay below 2^31, so both fit a Java long
MOST_KNOWN = 20_000

_known: dict[int, ConsumerId] = {}  # by member


def encode(member_id: int, queue: int) -> int:
    """Return the id of a queue as a member gets it.

    >>> decode(encode(5, 7))
    (5, 7)
    """
    return member_id << QUEUE_BITS | queue


def decode(queue_id: int) -> tuple[int, int]:
    """Return (member, queue) of such an id; the member is 0 for an id as others get it.

    >>> decode(7)
    (0, 7)
    """
    return queue_id >> QUEUE_BITS, queue_id & (1 << QUEUE_BITS) - 1


def remember(consumer: ConsumerId) -> None:
    """Remember the consumer id of a member."""
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[consumer.member_id] = consumer


def find_consumer(member_id: int) -> ConsumerId | None:
    """Return the consumer id of a Java client's membership, None if it has ended.

    It is remembered: one that has ended meanwhile owns nothing on the nodes. Raises
    MetadataUnavailable.
    """
    if member_id not in _known and member_id > 0:
        found = java_members.find_consumer(member_id)
        if found is None:
            return None
        remember(found)
    return _known.get(member_id)


def find_consumers(member_ids: Iterable[int]) -> dict[int, ConsumerId]:
    """Return the consumer ids of memberships that have not ended, by member. Raises
    MetadataUnavailable.
    """
    ids = {member for member in member_ids if member > 0}
    for consumer in java_members.find_consumers(
        [member for member in ids if member not in _known]
    ):
        remember(consumer)
    return {member: _known[member] for member in ids if member in _known}


def forget(member_id: int) -> None:
    """Look a member up again next time: it may have another consumer id."""
    _known.pop(member_id, None)
