"""The judge of groups finds what is wrong: each check gets a journal that is fine, then a
doctored one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import judge
from tests.support.judge import Story

SESSION_S = 2.0


def handling(
    at: float, offset: int, *, queue: int = 1, epoch: int = 1, took_s: float | None = 0.01
) -> list[Any]:
    """The lines of one handling; `took_s` None: it never returned."""
    place = {"queue": queue, "offset": offset, "epoch": epoch}
    begin = {"at": at, "what": "begin", "wall": 0.0, **place}
    return (
        [begin]
        if took_s is None
        else [begin, {"at": at + took_s, "what": "end", "wall": 0.0, **place}]
    )


def gained(at: float, *, queue: int = 1, epoch: int = 1) -> dict[str, Any]:
    """A member acquired a queue."""
    return {"at": at, "what": "gained", "queue": queue, "epoch": epoch}


def sent(
    asked: float, offset: int, *, queue: int = 1, took_s: float = 0.0
) -> dict[str, Any]:
    """A receipt, 5 ms after it was asked for."""
    line = {"at": asked + 0.005, "what": "sent", "queue": queue, "offset": offset}
    return line | {"asked": asked, "due": asked, "took_s": took_s}


def steady(count: int, *, begun: float = 0.0, first: int = 0, epoch: int = 1) -> list[Any]:
    """Handlings of one queue, one every 100 ms, each 20 ms after its message was sent."""
    lines = [handling(begun + 0.1 * n + 0.02, first + n, epoch=epoch) for n in range(count)]
    return [line for pair in lines for line in pair]


def told(
    members: Mapping[str, list[Any]], senders: list[Any] | None = None, **deaths: float
) -> Story:
    """The story of these journals."""
    return judge.story(members, senders or [], deaths)


def sending(count: int) -> list[Any]:
    """A message every 100 ms."""
    return [sent(0.1 * n, n) for n in range(count)]


def test_a_handler_that_starts_after_its_successor_is_a_second_owner() -> None:
    fine = {"a": handling(1.0, 0, took_s=5.0), "b": handling(2.0, 0, epoch=2)}
    assert judge.one_owner(told(fine)) == 2, "the one in flight may end late"
    fine["a"] += handling(2.5, 1)
    with pytest.raises(
        AssertionError,
        match=r"queue 1: a started offset 1 under epoch 1, 500\.0 ms after b",
    ):
        judge.one_owner(told(fine))


def test_an_epoch_belongs_to_one_member() -> None:
    with pytest.raises(AssertionError, match="queue 1: epoch 1 was a's and b's"):
        judge.one_owner(told({"a": handling(1.0, 0), "b": handling(2.0, 1)}))


def test_a_message_that_no_handler_returned_for_was_not_handled() -> None:
    assert judge.all_handled(told({"a": steady(3)}, sending(3))) == 3
    with pytest.raises(
        AssertionError, match=r"1 messages were not handled:\s+queue 1 offset 2"
    ):
        judge.all_handled(
            told({"a": steady(2) + handling(1.0, 2, took_s=None)}, sending(3))
        )


def test_a_message_at_the_place_of_another_that_was_handled_was_not_handled_itself() -> (
    None
):
    """What a node that serves messages before they are durable does when it is killed."""
    read, lost = handling(1.0, 0), sent(0.9, 0)
    numbered = [line | {"number": 7} for line in read]
    assert judge.all_handled(told({"a": numbered}, [lost | {"number": 7}])) == 1
    with pytest.raises(AssertionError, match=r"queue 1 offset 0: another message, \{7\}"):
        judge.all_handled(told({"a": numbered}, [lost | {"number": 8}]))


def test_a_repeat_is_excused_by_the_death_of_who_handled_the_message_first() -> None:
    twice = {"a": handling(1.0, 0), "b": handling(3.0, 0, epoch=2)}
    assert judge.repeats(told(twice, a=1.5)) == (1, 0.5)
    for deaths in ({}, {"b": 1.5}, {"a": 0.5}, {"a": 3.5}):
        with pytest.raises(AssertionError, match="queue 1 offset 0: by a"):
            judge.repeats(told(twice, **deaths))


def test_a_repeat_by_the_same_member_is_one() -> None:
    with pytest.raises(AssertionError, match=r"by a .* later by a"):
        judge.repeats(told({"a": handling(1.0, 0) + handling(2.0, 0)}))


def test_a_queue_stands_still_while_a_message_waits_for_its_owner() -> None:
    story = told({"a": [*steady(10), *handling(3.0, 10)]}, sending(11))
    calm, late = judge.standstills(story, 0, 0.95), judge.standstills(story, 0.95)
    assert [round(one.seconds, 3) for one in calm] == [0.02] * 9
    assert [round(one.seconds, 3) for one in late] == [2.0], "it was asked for at 1.0"
    with pytest.raises(AssertionError, match=r"queue 1 for 2\.000 s until 3\.000"):
        judge.no_standstill(calm, late)


def test_the_limit_of_a_standstill_follows_the_calm() -> None:
    calm = [judge.Standstill(1, 0.4, 0.0)]
    assert judge.no_standstill(calm, [judge.Standstill(1, 0.8, 0.0)]) == 0.8
    assert judge.no_standstill([judge.Standstill(1, 0.1, 0.0)], calm) == 0.5
    with pytest.raises(AssertionError):
        judge.no_standstill(calm, [judge.Standstill(1, 0.9, 0.0)])
    with pytest.raises(AssertionError, match="too little to compare"):
        judge.no_standstill(calm, [])


def test_a_sender_that_comes_late_makes_no_queue_stand_still() -> None:
    story = told(
        {"a": [*handling(0.1, 0), *handling(5.0, 1)]}, [sent(0.0, 0), sent(4.99, 1)]
    )
    assert [round(one.seconds, 3) for one in judge.standstills(story)] == [0.01]


def test_what_moved_does_not_count_as_standing_still() -> None:
    story = told({"a": steady(3), "b": steady(3, begun=5.0, first=3, epoch=2)}, sending(6))
    assert all(one.seconds < 0.1 for one in judge.standstills(story, until=0.3))
    assert [
        (one.before.member, one.after.member) for one in judge.moves(story, patience_s=5)
    ] == [("a", "b")]


def test_the_longest_wait_of_a_queue_counts_whoever_owns_it() -> None:
    moved = told({"a": steady(3), "b": steady(3, begun=5.0, first=3, epoch=2)}, sending(6))
    (longest,) = judge.longest_waits(moved).values()
    assert longest == pytest.approx(4.7, abs=0.05), (
        "its fourth message was asked for at 0.3"
    )
    assert max(judge.longest_waits(moved, until=0.25).values()) < 0.1


def test_a_queue_to_which_nothing_was_sent_proves_nothing() -> None:
    story = told({"a": steady(3)}, sending(3))
    with pytest.raises(AssertionError, match="nothing was sent"):
        judge.longest_waits(story, since=60.0)


def test_a_slow_hand_over_is_found() -> None:
    quick = {
        "a": [gained(0.0), *steady(3)],
        "b": [gained(1.0, epoch=2), *steady(3, begun=1.0, first=3, epoch=2)],
    }
    figures = judge.pauses(told(quick, sending(6)), session_s=SESSION_S)
    assert [round(pause, 2) for pause in figures.handed_over] == [0.72]
    slow = quick | {"b": [gained(4.0, epoch=2), *steady(3, begun=4.0, first=3, epoch=2)]}
    with pytest.raises(AssertionError, match=r"queue 1: 3\.720 s from a .* to b"):
        judge.pauses(told(slow, sending(6)), session_s=SESSION_S)


def test_the_queue_of_a_dead_member_may_pause_for_its_session() -> None:
    moved = {
        "a": [gained(0.0), *steady(3)],
        "b": [gained(4.0, epoch=2), *steady(3, begun=4.0, first=3, epoch=2)],
    }
    figures = judge.pauses(told(moved, sending(6), a=0.25), session_s=SESSION_S)
    assert ([round(pause, 2) for pause in figures.after_death], figures.handed_over) == (
        [3.72],
        [],
    )
    late = moved | {"b": [gained(6.0, epoch=2), *steady(3, begun=6.0, first=3, epoch=2)]}
    with pytest.raises(AssertionError, match=r"5\.720 s from a .* 1 deaths"):
        judge.pauses(told(late, sending(6), a=0.25), session_s=SESSION_S)


def test_an_epoch_that_a_dead_member_had_in_between_explains_a_pause() -> None:
    after = [gained(6.0, epoch=3), *steady(3, begun=6.0, first=3, epoch=3)]
    members = {"a": [gained(0.0), *steady(3)], "c": after}
    unexplained = told(members, sending(6))
    assert [one.deaths for one in judge.moves(unexplained, patience_s=5)] == [0]
    with pytest.raises(AssertionError):
        judge.pauses(unexplained, session_s=3.0)
    never_showed = told(members, sending(6), b=0.5)
    assert [one.deaths for one in judge.moves(never_showed, patience_s=5)] == [1]
    judge.pauses(never_showed, session_s=3.0)
    showed = members | {"b": [gained(0.4, epoch=2)]}
    assert [
        one.deaths for one in judge.moves(told(showed, sending(6), b=0.5), patience_s=5)
    ] == [1]
    assert [one.deaths for one in judge.moves(told(showed, sending(6)), patience_s=5)] == [
        0
    ]


def test_the_pause_begins_when_the_last_owner_worked_not_when_a_frozen_one_ended_late() -> (
    None
):
    frozen = handling(1.0, 0, took_s=9.0)
    members = {
        "a": [gained(0.0), *frozen],
        "b": [gained(4.0, epoch=2), *handling(4.0, 0, epoch=2)],
    }
    (move,) = judge.moves(told(members, sending(1), a=1.005), patience_s=5)
    assert move.pause_s == 3.0


def test_a_hand_over_may_take_longer_where_sends_do() -> None:
    slow = {**sent(0.0, 0), "at": 0.8}
    assert judge.hand_over_limit(told({}, [sent(0.0, 0)]), 0, 1) == 3.0
    assert judge.hand_over_limit(told({}, [slow]), 0, 1) == pytest.approx(4.8)


def test_a_gain_in_a_time_when_nobody_comes_or_goes_is_found() -> None:
    members = {"a": [gained(0.0), *steady(5)], "b": [gained(0.3, queue=2, epoch=2)]}
    assert judge.nobody_moved(told({"a": members["a"]}), 0.1, 9.0) == 4
    assert judge.nobody_moved(told(members), 0.1, 9.0, but=["b"]) == 4
    with pytest.raises(AssertionError, match=r"queue 2 went to b \(epoch 2\) at 0\.200 s"):
        judge.nobody_moved(told(members), 0.1, 9.0)
    with pytest.raises(AssertionError, match="proves nothing"):
        judge.nobody_moved(told(members), 7.0, 9.0)


def test_a_second_consumer_id_is_found() -> None:
    ids = [
        {"at": 0.0, "what": "joined", "consumer": "x"},
        {"at": 1.0, "what": "joined", "consumer": None},
    ]
    judge.kept_ids(told({"a": ids}), ["a"])
    for members in (
        {"a": [*ids, {"at": 2.0, "what": "joined", "consumer": "y"}]},
        {"a": []},
    ):
        with pytest.raises(AssertionError, match="a: "):
            judge.kept_ids(told(members), ["a"])


def test_errors_of_senders_and_members_are_found() -> None:
    judge.no_errors(told({"a": steady(1)}, sending(1)))
    error = {"at": 1.0, "what": "error", "error": "Unavailable"}
    with pytest.raises(
        AssertionError,
        match=r"2 errors were seen by applications:\s+a: Una\w+\s+sender: Una",
    ):
        judge.no_errors(told({"a": [error]}, [error]))


def test_a_send_that_kept_the_application_is_found() -> None:
    story = told({}, [sent(0.0, 0, took_s=0.2), sent(5.0, 1, took_s=3.0)])
    assert judge.sender_was_free(story, 0, 1, limit_s=0.5) == 0.2
    with pytest.raises(AssertionError, match=r"kept the application for 3\.000 s"):
        judge.sender_was_free(story, 0, 9, limit_s=0.5)


def test_a_node_is_disturbed_when_receipts_or_handlers_come_twice_as_late() -> None:
    calm, ill = (0.0, 1.0), (1.0, 2.0)
    fine = told({"a": steady(20)}, sending(20))
    said = judge.undisturbed(fine, calm, ill, 0.02)
    assert said == "receipts p99 5 ms, then 5 ms; ways to the handler p99 20 ms, then 20 ms"
    late = told({"a": [*steady(10), *handling(1.1, 10)]}, sending(11))
    with pytest.raises(AssertionError, match="ways to the handler p99 20 ms, then 100 ms"):
        judge.undisturbed(late, calm, ill, 0.02)
    judge.undisturbed(late, calm, ill, 0.5)


def test_the_longest_silence_is_that_of_the_queue_that_waited_longest() -> None:
    lines = [{"queue": 1, "at": 2.0}, {"queue": 1, "at": 9.0}, {"queue": 2, "at": 6.5}]
    assert judge.longest_silence(lines, since=4.0) == 5.0
    assert judge.longest_silence(lines, since=1.0) == 7.0
