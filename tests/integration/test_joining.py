"""Joining a group whose subscription is neither there nor gone."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from messagestore.topology import membership, subscriptions, topics
from metadata import actors
from metadata.errors import Code, Unavailable
from metadata.groups import groups, subscription_rows
from metadata.limits.places import Places

ACTOR = actors.command("test")


def join() -> membership.Joined:
    """A new member of group billing that wants topic orders."""
    incarnation = str(uuid.uuid4())
    return membership.join(
        group="billing", name="a", incarnation=incarnation, topics=["orders"], actor=ACTOR
    )


def test_who_joins_while_its_subscription_is_taken_down_is_told_to_come_again(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("main")
    topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    subscription_rows.mark_deleting(group="billing", topic="orders", actor=ACTOR)
    monkeypatch.setattr(membership, "PATIENCE_S", 0.0)

    with pytest.raises(Unavailable) as caught:
        join()
    subscriptions.sweep()

    assert caught.value.code == Code.BUSY
    assert join().created == ("subscription:billing/orders",)


def test_joins_of_one_key_leave_places_to_others(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("main")
    topics.create(name="orders", queues=1, actor=ACTOR)
    monkeypatch.setattr(membership, "_joins", Places(most=9, most_per_caller=1))
    assert membership._joins.take((ACTOR.kind, ACTOR.name))

    with pytest.raises(Unavailable) as caught:
        join()
    membership._joins.give_back((ACTOR.kind, ACTOR.name))

    assert caught.value.code == Code.BUSY and caught.value.retry_after_ms
    assert join().consumer_id
