"""Layouts over other queues than before: even, and no slot moves without need."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.rules.topics.slots import SLOTS, initial_layout, moved_slots, spread_slots

queues = st.integers(1, 40)
ids = st.sets(queues, min_size=1, max_size=12)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, ...]:
    """Any layout at all: some queues with many slots, some with few."""
    chosen = sorted(draw(ids))
    weights = draw(st.lists(st.integers(1, 50), min_size=len(chosen), max_size=len(chosen)))
    return tuple(Random(draw(st.integers(0, 99))).choices(chosen, weights, k=SLOTS))


@st.composite
def made(draw: st.DrawFn) -> tuple[int, ...]:
    """A layout that came about by the rule alone."""
    layout = initial_layout(sorted(draw(ids)))
    for step in draw(st.lists(ids, max_size=3)):
        layout = spread_slots(layout, open_queues=step)
    return layout


def fewest(layout: tuple[int, ...], wanted: set[int]) -> int:
    """How many slots must move at least: a queue keeps what it has, up to an even share of
    its own.
    """
    held = Counter(layout)
    base, extras = divmod(SLOTS, len(wanted))
    kept = sum(min(held[queue], base) for queue in wanted)
    return SLOTS - kept - min(extras, sum(held[queue] > base for queue in wanted))


@settings(max_examples=60)
@given(layout=st.one_of(layouts(), made()), wanted=ids)
def test_slots_are_shared_evenly_and_no_other_even_layout_moves_fewer(
    layout: tuple[int, ...], wanted: set[int]
) -> None:
    after = spread_slots(layout, open_queues=wanted)

    held = Counter(after)
    assert set(held) == wanted
    assert max(held.values()) - min(held.values()) <= 1
    assert len(moved_slots(layout, after)) == fewest(layout, wanted)


@settings(max_examples=60)
@given(layout=st.one_of(layouts(), made()), wanted=ids, closed=ids)
# who has one more keeps it
@example(layout=initial_layout([1, 2, 3]), wanted={3}, closed={1, 2})
def test_a_closed_queue_gets_no_slot_and_gives_only_what_is_above_the_share_of_the_others(
    layout: tuple[int, ...], wanted: set[int], closed: set[int]
) -> None:
    closed -= wanted
    changed = spread_slots(layout, open_queues=wanted, closed=closed)

    before, after = Counter(layout), Counter(changed)
    giving = {queue for queue in closed if after[queue] < before[queue]}
    shares = [after[queue] for queue in wanted | giving]
    assert max(shares) - min(shares) <= 1
    assert all(
        after[queue] == before[queue] <= min(shares) + 1 for queue in closed - giving
    )
    assert len(moved_slots(layout, changed)) == sum(
        max(0, after[queue] - before[queue]) for queue in wanted
    )


@settings(max_examples=30)
@given(
    layout=made(),
    wanted=st.lists(queues, min_size=1, max_size=12, unique=True),
    data=st.data(),
)
def test_the_order_in_which_queues_are_named_does_not_matter(
    layout: tuple[int, ...], wanted: list[int], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(wanted))
    assert spread_slots(layout, open_queues=wanted) == spread_slots(
        layout, open_queues=other
    )


@given(wanted=ids, more=ids)
def test_who_expands_moves_slots_only_to_the_new_queues(
    wanted: set[int], more: set[int]
) -> None:
    before = spread_slots(initial_layout(sorted(wanted)), open_queues=wanted)
    after = spread_slots(before, open_queues=wanted | more)
    assert {after[slot] for slot in moved_slots(before, after)} <= more - wanted


def test_who_shrinks_moves_only_the_slots_of_the_queues_that_go() -> None:
    before = initial_layout(range(1, 257))
    after = spread_slots(before, open_queues=range(1, 256))
    assert {before[slot] for slot in moved_slots(before, after)} == {256}
    assert len(moved_slots(before, after)) == 4


def test_an_even_layout_stays_as_it_is() -> None:
    layout = initial_layout([5, 3, 9])
    assert spread_slots(layout, open_queues=[9, 5, 3]) == layout
    assert moved_slots(layout, layout) == []
