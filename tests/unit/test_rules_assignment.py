"""The assignment rule: balanced, sticky, the same for everybody."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.rules.membership.assignment import assign

MEMBERS = st.lists(st.integers(1, 30), unique=True, min_size=1, max_size=8)
TOPICS = st.lists(st.integers(1, 9), min_size=1, max_size=6)  # queues per topic


def queues_of(topics: list[int]) -> dict[int, int]:
    """Queue id → topic id for topics of so many queues each."""
    return {
        topic * 100 + number: topic
        for topic, count in enumerate(topics, start=1)
        for number in range(count)
    }


def spread(shares: Counter[int], members: list[int]) -> int:
    counts = [shares[member] for member in members]
    return max(counts) - min(counts)


@given(MEMBERS, TOPICS, st.data())
def test_shares_differ_by_at_most_one_over_all_and_in_every_topic(
    members: list[int], topics: list[int], data: st.DataObject
) -> None:
    queues = queues_of(topics)
    current = {queue: data.draw(st.sampled_from([None, 99, *members])) for queue in queues}

    result = assign(members=members, queues=queues, current=current)

    assert set(result) == set(queues)
    assert spread(Counter(result.values()), members) <= 1
    for topic in set(queues.values()):
        assert (
            spread(
                Counter(result[queue] for queue in queues if queues[queue] == topic),
                members,
            )
            <= 1
        )


@given(MEMBERS, TOPICS)
def test_a_balanced_assignment_stays_as_it_is(
    members: list[int], topics: list[int]
) -> None:
    queues = queues_of(topics)
    first = assign(members=members, queues=queues, current={})

    assert assign(members=members, queues=queues, current=first) == first


@given(MEMBERS, TOPICS)
def test_the_order_of_members_and_queues_does_not_matter(
    members: list[int], topics: list[int]
) -> None:
    queues = queues_of(topics)
    turned = dict(reversed(queues.items()))

    assert assign(members=members[::-1], queues=turned, current={}) == assign(
        members=members, queues=queues, current={}
    )


@given(MEMBERS, st.integers(1, 40))
def test_a_new_member_takes_exactly_its_share_of_a_topic_and_nothing_else_moves(
    members: list[int], count: int
) -> None:
    queues = queues_of([count])
    before = assign(members=members, queues=queues, current={})

    after = assign(members=[*members, 50], queues=queues, current=before)

    moved = [queue for queue in queues if after[queue] != before[queue]]
    assert all(after[queue] == 50 for queue in moved)
    assert len(moved) == count // (len(members) + 1)


@given(
    st.lists(st.integers(1, 30), unique=True, min_size=2, max_size=8), st.integers(1, 40)
)
def test_when_a_member_leaves_a_topic_only_its_queues_move(
    members: list[int], count: int
) -> None:
    queues = queues_of([count])
    before = assign(members=members, queues=queues, current={})
    gone, stay = members[0], members[1:]

    after = assign(members=stay, queues=queues, current=before)

    assert {queue for queue in queues if after[queue] != before[queue]} == {
        queue for queue, owner in before.items() if owner == gone
    }


@given(MEMBERS, TOPICS)
def test_a_leaving_member_of_many_topics_moves_few_queues_of_others(
    members: list[int], topics: list[int]
) -> None:
    queues = queues_of(topics)
    before = assign(members=[*members, 50], queues=queues, current={})

    after = assign(members=members, queues=queues, current=before)

    moved = sum(after[queue] != before[queue] for queue in queues)
    freed = sum(owner == 50 for owner in before.values())
    assert moved <= freed + len(topics)


def test_without_members_nothing_is_assigned() -> None:
    assert assign(members=[], queues={1: 1}, current={1: 7}) == {}


def test_more_members_than_queues_leaves_some_without() -> None:
    result = assign(members=[1, 2, 3], queues={10: 1}, current={10: 3})

    assert result == {10: 3}


def test_a_thousand_queues_and_a_hundred_members_are_assigned_quickly() -> None:
    queues = queues_of([4] * 250)
    before = assign(members=list(range(100)), queues=queues, current={})

    after = assign(members=list(range(1, 101)), queues=queues, current=before)

    assert spread(Counter(after.values()), list(range(1, 101))) <= 1


def fewest_moves(
    members: list[int], queues: dict[int, int], current: dict[int, int | None]
) -> int:
    """The best of all balanced assignments, found by trying every one."""
    fewest = len(queues)
    for owners in itertools.product(members, repeat=len(queues)):
        dealt = dict(zip(queues, owners, strict=True))
        shares = [Counter(dealt.values())] + [
            Counter(member for queue, member in dealt.items() if queues[queue] == topic)
            for topic in set(queues.values())
        ]
        if all(spread(one, members) <= 1 for one in shares):
            fewest = min(
                fewest, sum(current[queue] != member for queue, member in dealt.items())
            )
    return fewest


@settings(max_examples=150)
@given(data=st.data())
def test_no_balanced_assignment_moves_fewer_queues(data: st.DataObject) -> None:
    members = list(range(1, 1 + data.draw(st.integers(1, 4))))
    sizes = data.draw(
        st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda s: sum(s) <= 6)
    )
    queues = {
        100 + i: topic
        for i, topic in enumerate(t for t, n in enumerate(sizes) for _ in range(n))
    }
    holder = st.sampled_from([None, 9, *members])  # 9 has gone
    current = {queue: data.draw(holder) for queue in queues}

    dealt = assign(members=members, queues=queues, current=current)

    moves = sum(current[queue] != member for queue, member in dealt.items())
    assert moves == fewest_moves(members, queues, current)
