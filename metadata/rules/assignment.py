"""Which member shall read which queue: balanced first, sticky second.

Balanced means two things at once: over all queues of the group the members' shares differ by at
most one, and so do their shares of every single topic. Within that, as many queues as possible stay.

Why both can always be had: with m members, topic t of n queues gives everyone n // m, and n % m
members one *extra*. Only who gets the extras is free. A member's share is the same base for all plus
its extras, so the shares are balanced when the extras are. If one member has two extras more than
another, some topic gave one to the first and not to the second, and moving that one keeps the topic
balanced. So: hand each topic's extras to those who hold more than the base already (they keep one
queue more), the rest to whoever has fewest; then move extras until nobody has two more than another.
An assignment that is balanced already comes out unchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

Holdings = Mapping[int, Counter[int]]  # topic → member → queues it holds now


def assign(
    *, members: Sequence[int], queues: Mapping[int, int], current: Mapping[int, int | None]
) -> dict[int, int]:
    """Queue id → member id for every queue; empty without members.

    `queues` maps queue id to topic id; `current` maps a queue to the member it is meant for now
    (others than `members` count as nobody). The result depends on nothing else, not even on order.

    Three queues of topic 1, members 10 and 20; then 30 joins, and only queue 101 moves:

    >>> topic = {100: 1, 101: 1, 102: 1}
    >>> first = assign(members=[10, 20], queues=topic, current={})
    >>> first
    {100: 10, 101: 10, 102: 20}
    >>> assign(members=[10, 20, 30], queues=topic, current=first)
    {100: 10, 101: 30, 102: 20}
    """
    if not members:
        return {}
    order = sorted(set(members))
    by_topic: dict[int, list[int]] = defaultdict(list)
    for queue in sorted(queues):
        by_topic[queues[queue]].append(queue)
    holdings = {
        topic: Counter(member for one in ids if (member := current.get(one)) is not None)
        for topic, ids in by_topic.items()
    }
    extras = _extras(order, by_topic, holdings)
    result: dict[int, int] = {}
    for topic, ids in by_topic.items():
        base = len(ids) // len(order)
        quota = {member: base + (topic in extras[member]) for member in order}
        result.update(_deal(ids, quota, current))
    return dict(sorted(result.items()))


def _extras(order: list[int], by_topic: Mapping[int, list[int]], holdings: Holdings) -> dict[int, set[int]]:
    """Member → topics of which it gets one queue more than the base."""
    extras: dict[int, set[int]] = {member: set() for member in order}
    wants = {
        topic: {member for member in order if holdings[topic][member] > len(ids) // len(order)}
        for topic, ids in by_topic.items()
    }
    for topic, ids in sorted(by_topic.items()):
        ranked = sorted(order, key=lambda member: (member not in wants[topic], len(extras[member]), member))
        for member in ranked[: len(ids) % len(order)]:
            extras[member].add(topic)
    while _level(order, extras, wants):
        pass
    return extras


def _level(order: list[int], extras: dict[int, set[int]], wants: Mapping[int, set[int]]) -> bool:
    """Moves one extra from the richest to the poorest member; False if they differ by at most one."""
    poor = min(order, key=lambda member: (len(extras[member]), member))
    rich = max(order, key=lambda member: (len(extras[member]), -member))
    if len(extras[rich]) - len(extras[poor]) < 2:
        return False
    topic = min(
        extras[rich] - extras[poor],
        key=lambda one: ((rich in wants[one]) - (poor in wants[one]), one),
    )
    extras[rich].remove(topic)
    extras[poor].add(topic)
    return True


def _deal(ids: list[int], quota: dict[int, int], current: Mapping[int, int | None]) -> dict[int, int]:
    """The queues of one topic dealt by quota: whoever holds one keeps it, as far as its quota reaches."""
    left = dict(quota)
    dealt: dict[int, int] = {}
    for queue in ids:
        member = current.get(queue)
        if member is not None and left.get(member, 0) > 0:
            left[member] -= 1
            dealt[queue] = member
    homeless = [queue for queue in ids if queue not in dealt]
    for queue in homeless:
        member = max(left, key=lambda one: (left[one], -one))
        left[member] -= 1
        dealt[queue] = member
    return dealt
