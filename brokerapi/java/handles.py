"""Queue ids as Java clients get them: the member that may read the queue, and the queue.

These clients name no consumer when they pull, commit or report a failure. They only repeat
the id of a queue that they were given. Since the id contains the member, a request of a
former owner can be distinguished from a request of the owner.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerapi.java.bounded import BoundedDict
from metadata.db.consumer_ids import ConsumerId
from metadata.membership import java_members

QUEUE_BITS = 31  # ids of queues and of members stay below 2^31, so both fit a Java long
MOST_KNOWN = 20_000

_consumers = BoundedDict[int, ConsumerId](MOST_KNOWN)  # by member id


def encode(member_id: int, queue: int) -> int:
    """Return the id of a queue as a member gets it.

    >>> decode(encode(5, 7))
    (5, 7)
    """
    return member_id << QUEUE_BITS | queue


def decode(queue_id: int) -> tuple[int, int]:
    """Return (member, queue) of such an id. For the queue id that other clients use, the
    member is 0.

    >>> decode(7)
    (0, 7)
    """
    return queue_id >> QUEUE_BITS, queue_id & (1 << QUEUE_BITS) - 1


def remember(consumer: ConsumerId) -> None:
    _consumers[consumer.member_id] = consumer


def find_consumer(member_id: int) -> ConsumerId | None:
    """Return the consumer id of a Java client's membership, None if it has ended.

    Consumer ids are cached: a membership that has ended owns nothing on the nodes. Raises
    MetadataUnavailable.
    """
    if member_id not in _consumers and member_id > 0:
        consumer = java_members.find_consumer(member_id)
        if consumer is None:
            return None
        remember(consumer)
    return _consumers.get(member_id)


def find_consumers(member_ids: Iterable[int]) -> dict[int, ConsumerId]:
    """Return the consumer ids of memberships that have not ended, by member. Raises
    MetadataUnavailable.
    """
    ids = {member for member in member_ids if member > 0}
    for consumer in java_members.find_consumers(
        [member for member in ids if member not in _consumers]
    ):
        remember(consumer)
    return {member: _consumers[member] for member in ids if member in _consumers}


def forget(member_id: int) -> None:
    # Its client may have registered again, with another consumer id.
    _consumers.pop(member_id, None)
