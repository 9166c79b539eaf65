"""Slots: a topic has 1,024 slots for its keys, and its layout maps each slot to a queue."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SLOTS = 1024
Layout = tuple[int, ...]  # slot → queue id


def slot_of(key: str) -> int:
    """Return the slot of a key: CRC-32 of its UTF-8 bytes, modulo 1,024.

    >>> slot_of("42") == zlib.crc32(b"42") % 1024
    True
    """
    return zlib.crc32(key.encode()) % SLOTS


def initial_layout(queue_ids: Sequence[int]) -> Layout:
    """Return the layout of a new topic: slots are dealt to the queues in turn.

    >>> initial_layout([7, 8, 9])[:5]
    (7, 8, 9, 7, 8)
    """
    return tuple(queue_ids[slot % len(queue_ids)] for slot in range(SLOTS))


def spread_slots(
    layout: Sequence[int], *, open_queues: Iterable[int], closed: Iterable[int] = ()
) -> Layout:
    """Return a layout over other queues than before: as even as possible, with as few
    moved slots as possible.

    `open_queues` (at least one) share the slots. Queues in `closed` take no messages
    now, so they give slots away but get none. A queue that is in neither loses all its
    slots. Queues with too many slots give their highest slots to the queue that lacks
    most. The result does not depend on the order of the arguments.

    >>> before = initial_layout([7, 8])
    >>> after = spread_slots(before, open_queues=[7, 8, 9])
    >>> [after.count(queue) for queue in (7, 8, 9)], len(moved_slots(before, after))
    ([342, 341, 341], 341)
    """
    held = Counter(layout)
    quota = _slot_quotas(
        {queue_id: held[queue_id] for queue_id in open_queues},
        {queue_id: held[queue_id] for queue_id in closed},
    )
    missing = Counter(
        {
            queue: target - held[queue]
            for queue, target in quota.items()
            if target > held[queue]
        }
    )
    spare = {queue: count - quota.get(queue, 0) for queue, count in held.items()}
    result = list(layout)
    # From the highest slot down, so that the result depends only on the layout.
    for slot in reversed(range(len(layout))):
        giver = layout[slot]
        if spare[giver] > 0:
            taker = max(missing, key=lambda queue: (missing[queue], -queue))
            spare[giver] -= 1
            missing[taker] -= 1
            result[slot] = taker
    return tuple(result)


def _slot_quotas(
    open_slots: Mapping[int, int], closed_slots: Mapping[int, int]
) -> dict[int, int]:
    """Return the number of slots that each queue shall have; the arguments have the
    present numbers.

    A closed queue with less than an even share keeps its slots, and the others share
    the rest. If the rest cannot be divided evenly, queues that would have to give slots
    away keep one more.
    """
    total, sharing = SLOTS, {**open_slots, **closed_slots}
    quota: dict[int, int] = {}
    # A queue that keeps its slots raises the share of the others, so others may fall
    # below it.
    while unchanged := [
        queue_id
        for queue_id in closed_slots
        if queue_id in sharing and sharing[queue_id] * len(sharing) < total
    ]:
        for queue in unchanged:
            quota[queue] = sharing.pop(queue)
            total -= quota[queue]
    base, extras = divmod(total, len(sharing))
    ranked = sorted(
        sharing, key=lambda queue: (sharing[queue] <= base, queue in closed_slots, queue)
    )
    return quota | {queue: base + (rank < extras) for rank, queue in enumerate(ranked)}


def moved_slots(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [slot for slot, queue in enumerate(before) if after[slot] != queue]
