"""Topics and groups that an actor sees, all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from metadata.actors import Actor
from metadata.db.paging import MAX_LIMIT, Page, Window
from metadata.groups import groups
from metadata.groups.groups import GroupView
from metadata.topics import topic_rows
from metadata.topics.topic_rows import TopicView

V = TypeVar("V")


def all_topics(actor: Actor) -> Iterator[TopicView]:
    """Return topics by name, without retry topics and deleted ones."""
    return _all(lambda window: topic_rows.list_topics(actor=actor, window=window))


def all_groups(actor: Actor) -> Iterator[GroupView]:
    """Return groups by name, with their subscriptions and without members."""
    return _all(lambda window: groups.page(actor=actor, window=window))


def _all(page: Callable[[Window], Page[V]]) -> Iterator[V]:
    after: str | None = ""
    while after is not None:
        found = page(Window(limit=MAX_LIMIT, after=after))
        yield from found.items
        after = found.next


def open_queues(topic: TopicView) -> int:
    """Return the number of queues that a topic sends to: those that are drained do not
    count.
    """
    return len(set(topic.layout)) or len(topic.queues)
