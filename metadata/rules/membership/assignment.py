"""Assignment of queues to the members of a group: balanced first, sticky second.

Balanced means two things at once: over all queues of the group, the shares of the members
differ by at most one, and so do their shares of every single topic. Within that, as many
queues as possible keep their member.

Both can always be had. With m members, a topic of n queues gives every member n // m queues,
and n % m members get an *extra* queue. Only the choice of these members is free. The share
of a member is the same base for all plus its extras, so the shares are balanced when the
extras are. If a member has two extras more than another, some topic gave an extra to the
first and not to the second, and moving that extra keeps the topic balanced. So:

* give the extras of each topic to members that hold more than the base already (they *want*
  it, because they keep one queue more), the rest to the members with fewest extras;
* then move extras until no member has two more than another.

An assignment that is balanced already comes out unchanged.

This is near the fewest moves. To reach it, extras are passed on in cycles. Passing the extra
of a topic from one member to another gains a queue that stays, loses one, or neither. A
cycle of transfers leaves all shares as they are, and so does a chain from a member with one
extra more to a member with fewer. As long as a cycle gains, there is a better assignment,
and when none does, there is not: this is the cancelling of negative cycles of a minimum cost
flow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

# Bounds the search for cycles, counted in visits of a topic for a pair of members,
# because callers hold a lock meanwhile. Beyond it, the assignment is balanced, too, but
# may move a few queues more than needed.
MAX_WORK = 2_000_000

OwnedCounts = Mapping[int, Counter[int]]  # topic → member → queues that it holds now


def assign(
    *, members: Sequence[int], queues: Mapping[int, int], current: Mapping[int, int | None]
) -> dict[int, int]:
    """Return the member of every queue, by queue id; {} without members.

    `queues` maps queue ids to topic ids. `current` maps a queue to the member that it
    is meant for now; ids that are not in `members` are ignored. The result depends on
    nothing else, not even on the order.

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
        topic: Counter(
            member for queue_id in ids if (member := current.get(queue_id)) is not None
        )
        for topic, ids in by_topic.items()
    }
    extras = _choose_extras(order, by_topic, owned)
    result: dict[int, int] = {}
    for topic, ids in by_topic.items():
        base = len(ids) // len(order)
        remaining = {member: base + (topic in extras[member]) for member in order}
        # A member keeps the queues that it holds, up to its quota.
        for queue in ids:
            holder = current.get(queue)
            if holder is not None and remaining.get(holder, 0) > 0:
                remaining[holder] -= 1
                result[queue] = holder
        for queue in ids:
            if queue not in result:
                member = max(
                    remaining, key=lambda candidate: (remaining[candidate], -candidate)
                )
                remaining[member] -= 1
                result[queue] = member
    return dict(sorted(result.items()))


def _choose_extras(
    order: list[int], by_topic: Mapping[int, list[int]], owned: OwnedCounts
) -> dict[int, set[int]]:
    """Return the topics of which each member gets a queue more than the base."""
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
    # Move extras until no member has two more than another.
    while True:
        poor = min(order, key=lambda member: (len(extras[member]), member))
        rich = max(order, key=lambda member: (len(extras[member]), -member))
        if len(extras[rich]) - len(extras[poor]) < 2:
            break
        # Prefer a topic that the receiver wants and the giver does not, then the lowest id.
        costs = {
            topic: (rich in wants[topic]) - (poor in wants[topic])
            for topic in extras[rich] - extras[poor]
        }
        _, moved_topic = min((cost, topic) for topic, cost in costs.items())
        extras[rich].remove(moved_topic)
        extras[poor].add(moved_topic)
    wanted_topics = {
        member: {topic for topic, fans in wants.items() if member in fans}
        for member in order
    }
    # Then improve the assignment until no cycle gains, or the work is used up.
    for _ in range(MAX_WORK // (len(order) ** 2 * max(1, len(by_topic)))):
        cycle = _find_improving_cycle(order, extras, wanted_topics)
        for giver, taker, topic in cycle:
            extras[giver].remove(topic)
            extras[taker].add(topic)
        if not cycle:
            break
    return extras


def _find_improving_cycle(
    order: list[int], extras: Mapping[int, set[int]], wanted: Mapping[int, set[int]]
) -> list[tuple[int, int, int]]:
    """Return transfers (giver, taker, topic) that together let one queue more stay; [] if
    there are none.

    Bellman-Ford search for a cycle of positive weight, over members.
    """
    if not any(wanted[member] - extras[member] for member in order):
        return []
    max_extras = max(len(extras[member]) for member in order)
    edges = [
        (giver, taker, *edge)
        for giver in order
        for taker in order
        if giver != taker
        and (
            edge := _find_best_transfer(
                giver, taker, extras=extras, wanted=wanted, max_extras=max_extras
            )
        )
        is not None
    ]
    gain = dict.fromkeys(order, 0)
    came_from: dict[int, tuple[int, int | None]] = {}
    changed_member = None
    for _ in range(len(order) + 1):
        changed_member = None
        for giver, taker, weight, topic in edges:
            if gain[giver] + weight > gain[taker]:
                gain[taker] = gain[giver] + weight
                came_from[taker] = (giver, topic)
                changed_member = taker
        if changed_member is None:
            return []
    # A change in the last round proves that there is a cycle.
    member = changed_member
    assert member is not None  # noqa: S101 - the last round changed it
    # After as many steps as there are members, the walk is inside the cycle.
    for _ in range(len(came_from)):
        member = came_from[member][0]
    start, cycle = member, []
    while True:
        giver, passed_topic = came_from[member]
        # The closing of a chain passes no extra.
        if passed_topic is not None:
            cycle.append((giver, member, passed_topic))
        member = giver
        if member == start:
            return cycle


def _find_best_transfer(
    giver: int,
    taker: int,
    *,
    extras: Mapping[int, set[int]],
    wanted: Mapping[int, set[int]],
    max_extras: int,
) -> tuple[int, int | None] | None:
    """Return (gain, topic) of the best extra that `giver` can pass to `taker`; topic None
    closes a chain.

    A chain begins at a member with the most extras and ends at a member with fewer:
    their shares change places. Return None if there is nothing to pass.
    """
    best: tuple[int, int | None] | None = None
    if len(extras[giver]) < max_extras == len(extras[taker]):
        best = (0, None)
    free = extras[giver] - extras[taker]
    for topic in sorted(free & wanted[taker] - wanted[giver]) or sorted(free):
        gain = (topic in wanted[taker]) - (topic in wanted[giver])
        if best is None or gain > best[0]:
            best = (gain, topic)
    return best
