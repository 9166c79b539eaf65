"""Key → slot: a topic has 1,024 fixed slots, and its layout says which queue serves each."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SLOTS = 1024
Layout = tuple[int, ...]  # slot → queue id


def slot_of(key: str) -> int:
    """The slot of a key: CRC-32 of its UTF-8 bytes, modulo 1,024.

    >>> slot_of("42") == zlib.crc32(b"42") % 1024
    True
    """
    return zlib.crc32(key.encode()) % SLOTS


def initial_layout(queue_ids: Sequence[int]) -> Layout:
    """The layout of a new topic: slots dealt to the queues in turn.

    >>> initial_layout([7, 8, 9])[:5]
    (7, 8, 9, 7, 8)
    """
    return tuple(queue_ids[slot % len(queue_ids)] for slot in range(SLOTS))


def spread_slots(
    layout: Sequence[int], *, open_queues: Iterable[int], closed: Iterable[int] = ()
) -> Layout:
    """The layout over other queues than before: as even as can be, and with as few slots
    moved as that takes.

    `open_queues` (at least one) share the slots; those in `closed` take no messages now, so
    they give slots away but get none. A queue that is in neither loses all it has. Slots of
    queues with too many go, the highest first, to whoever lacks most. The result depends on
    nothing but the arguments, not on their order.

    >>> before = initial_layout([7, 8])
    >>> after = spread_slots(before, open_queues=[7, 8, 9])
    >>> [after.count(queue) for queue in (7, 8, 9)], len(moved_slots(before, after))
    ([342, 341, 341], 341)
    """
    held = Counter(layout)
    quota = _quotas(
        {one: held[one] for one in open_queues}, {one: held[one] for one in closed}
    )
    lack = Counter(
        {queue: want - held[queue] for queue, want in quota.items() if want > held[queue]}
    )
    spare = {queue: have - quota.get(queue, 0) for queue, have in held.items()}
    result = list(layout)
    for slot in reversed(range(len(layout))):
        giver = layout[slot]
        if spare[giver] > 0:
            taker = max(lack, key=lambda queue: (lack[queue], -queue))
            spare[giver] -= 1
            lack[taker] -= 1
            result[slot] = taker
    return tuple(result)


def _quotas(of_open: Mapping[int, int], of_closed: Mapping[int, int]) -> dict[int, int]:
    """Queue → how many slots it shall have; both arguments say how many each has now.

    A closed queue that has less than an even share keeps what it has, and the others share
    the rest. Where the rest cannot be divided evenly, those that would have to give slots
    away keep one more.
    """
    total, sharing = SLOTS, {**of_open, **of_closed}
    quota: dict[int, int] = {}
    while small := [
        one for one in of_closed if one in sharing and sharing[one] * len(sharing) < total
    ]:
        for queue in small:
            quota[queue] = sharing.pop(queue)
            total -= quota[queue]
    base, extras = divmod(total, len(sharing))
    ranked = sorted(
        sharing, key=lambda queue: (sharing[queue] <= base, queue in of_closed, queue)
    )
    return quota | {queue: base + (place < extras) for place, queue in enumerate(ranked)}


def moved_slots(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [slot for slot, queue in enumerate(before) if after[slot] != queue]
