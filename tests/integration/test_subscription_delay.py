"""Pulls of groups whose subscription has a delay, on whichever engine is under test."""

from __future__ import annotations

import pytest

from metadata.actors import command
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.groups import subscription_rows
from tests.integration.test_tag_filter import member, pull_one, queue, read, send, take
from tests.support.tampering import age

__all__ = ["member", "queue"]


@pytest.fixture(autouse=True)
def delayed(queue: int) -> None:
    """The group takes all messages, a minute after they were stored."""
    take("*")
    subscription_rows.update(
        group="billing", topic="orders", settings={"delay_s": 60}, actor=command("test")
    )
    snapshot.refresh()


def test_a_young_message_is_not_served_and_the_answer_says_for_how_long(
    queue: int,
    member: ConsumerId,
) -> None:
    send(queue, "a", "b")
    answer = pull_one(member, queue)
    assert (answer.state, *read(answer), answer.head) == ("ok", [], 0, 2)
    assert 50_000 < (answer.due_in_ms or 0) <= 60_000


def test_what_is_old_enough_comes_and_the_rest_waits(
    queue: int,
    member: ConsumerId,
) -> None:
    send(queue, "a", "b")
    send(queue, "c")
    age(queue, 0, 2, seconds=61)
    assert read(pull_one(member, queue)) == ([0, 1], 2)
    answer = pull_one(member, queue, 2)
    assert (*read(answer), answer.head) == ([], 2, 3)


def test_a_delay_and_a_tag_filter_work_together(
    queue: int,
    member: ConsumerId,
) -> None:
    take("new")
    send(queue, "old", "new", "old")
    send(queue, "new")
    age(queue, 0, 3, seconds=61)
    assert read(pull_one(member, queue)) == ([1], 3)
    assert read(pull_one(member, queue, 3)) == ([], 3)
