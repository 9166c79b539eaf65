"""Assignment of queues to the members of a group: balanced first, sticky second.

Balanced means two things at once: over all queues of the group the members' shares differ
by at most one, and so do their shares of every single topic. Within that, as many queues as
possible stay.

Why both can always be had: with m members, topic t of n queues gives everyone n // m, and n
% m members one *extra*. Only who gets the extras is free. A member's share is the same base
for all plus its extras, so the shares are balanced when the extras are. If one member has
two extras more than another, some topic gave one to the first and not to the second, and
moving that one keeps the topic balanced. So: hand each topic's extras to those who hold
more than the base already (they
*want* it: they
keep one queue more), the rest to whoever has fewest; then move extras until nobody has two
more than another. An assignment that is balanced already comes out unchanged.

That is near the fewest moves. To reach it, extras are passed on in circles: handing topic
t's extra from one member to another gains a queue that stays, loses one or neither, and a
circle of such hand-ons leaves all shares as they are (a chain does, too, from a member with
one extra more to one with fewer). As long as a circle gains, there is a better assignment,
and when none does there is not: cancelling the negative cycles of a minimum cost flow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

# Bounds the search for the last queues to spare, counted in looks at a topic for a pair of
# members: callers
# hold a lock meanwhile. Above it the assignment is balanced, too, but may move a few queues
# more than needed.
MOST_WORK = 2_000_000

OwnedCounts = Mapping[int, Counter[int]]  # topic → member → queues it holds now


def assign(
    *, members: Sequence[int], queues: Mapping[int, int], current: Mapping[int, int | None]
) -> dict[int, int]:
    """Queue id → member id for every queue; empty without members.

    `queues` maps queue id to topic id; `current` maps a queue to the member it is meant for
    now (others than `members` count as nobody). The result depends on nothing else, not
    even on order.

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
    owned = {
        topic: Counter(member for one in ids if (member := current.get(one)) is not None)
        for topic, ids in by_topic.items()
    }
    extras = _extras(order, by_topic, owned)
    result: dict[int, int] = {}
    for topic, ids in by_topic.items():
        base = len(ids) // len(order)
        quota = {member: base + (topic in extras[member]) for member in order}
        result.update(_deal(ids, quota, current))
    return dict(sorted(result.items()))


def _extras(
    order: list[int], by_topic: Mapping[int, list[int]], owned: OwnedCounts
) -> dict[int, set[int]]:
    """Member → topics of which it gets one queue more than the base."""
    extras: dict[int, set[int]] = {member: set() for member in order}
    wants = {
        topic: {member for member in order if owned[topic][member] > len(ids) // len(order)}
        for topic, ids in by_topic.items()
    }
    for topic, ids in sorted(by_topic.items()):
        ranked = sorted(
            order,
            key=lambda member: (member not in wants[topic], len(extras[member]), member),
        )
        for member in ranked[: len(ids) % len(order)]:
            extras[member].add(topic)
    while _level(order, extras, wants):
        pass
    wanted = {
        member: {topic for topic, fans in wants.items() if member in fans}
        for member in order
    }
    for _ in range(MOST_WORK // (len(order) ** 2 * max(1, len(by_topic)))):
        circle = _gainful_circle(order, extras, wanted)
        for giver, taker, topic in circle:
            extras[giver].remove(topic)
            extras[taker].add(topic)
        if not circle:
            break
    return extras


def _level(
    order: list[int], extras: dict[int, set[int]], wants: Mapping[int, set[int]]
) -> bool:
    """Move one extra from the richest to the poorest member; False if they differ by at
    most one.
    """
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


def _gainful_circle(
    order: list[int], extras: Mapping[int, set[int]], wanted: Mapping[int, set[int]]
) -> list[tuple[int, int, int]]:
    """Hand-ons (giver, taker, topic) that together let one queue more stay; [] if there are
    none.

    Bellman and Ford's search for a circle of positive weight, over members.
    """
    if not any(wanted[member] - extras[member] for member in order):
        return []
    most = max(len(extras[member]) for member in order)
    edges = [
        (giver, taker, *edge)
        for giver in order
        for taker in order
        if giver != taker
        and (edge := _best_hand_on(giver, taker, extras=extras, wanted=wanted, most=most))
        is not None
    ]
    gain = dict.fromkeys(order, 0)
    came: dict[int, tuple[int, int | None]] = {}
    last = None
    for _ in range(len(order) + 1):
        last = None
        for giver, taker, weight, topic in edges:
            if gain[giver] + weight > gain[taker]:
                gain[taker] = gain[giver] + weight
                came[taker] = (giver, topic)
                last = taker
        if last is None:
            return []
    return _circle_behind(last, came)


def _best_hand_on(
    giver: int,
    taker: int,
    *,
    extras: Mapping[int, set[int]],
    wanted: Mapping[int, set[int]],
    most: int,
) -> tuple[int, int | None] | None:
    """(gain, topic) of the best extra that `giver` can hand to `taker`; topic None closes a
    chain.

    A chain begins at a member with the most extras and ends at one with fewer: their shares
    change places.
    """
    best: tuple[int, int | None] | None = None
    if len(extras[giver]) < most == len(extras[taker]):
        best = (0, None)
    free = extras[giver] - extras[taker]
    for topic in sorted(free & wanted[taker] - wanted[giver]) or sorted(free):
        gain = (topic in wanted[taker]) - (topic in wanted[giver])
        if best is None or gain > best[0]:
            best = (gain, topic)
    return best


def _circle_behind(
    member: int | None, came: Mapping[int, tuple[int, int | None]]
) -> list[tuple[int, int, int]]:
    """The circle that one comes upon by going back from `member`."""
    assert member is not None  # noqa: S101 - the last round changed it
    for _ in range(len(came)):
        member = came[member][0]
    start, circle = member, []
    while True:
        giver, topic = came[member]
        if topic is not None:
            circle.append((giver, member, topic))
        member = giver
        if member == start:
            return circle


def _deal(
    ids: list[int], quota: dict[int, int], current: Mapping[int, int | None]
) -> dict[int, int]:
    """The queues of one topic dealt by quota: whoever holds one keeps it, as far as its
    quota reaches.
    """
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
