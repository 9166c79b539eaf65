"""All topics and groups that an actor may see, read page by page."""

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
    """Yield topics by name, without retry topics and deleted topics."""
    return _all(lambda window: topic_rows.list_topics(actor=actor, window=window))


def all_groups(actor: Actor) -> Iterator[GroupView]:
    """Yield groups by name, with their subscriptions and without members."""
    return _all(lambda window: groups.page(actor=actor, window=window))


def _all(page: Callable[[Window], Page[V]]) -> Iterator[V]:
    after: str | None = ""
    while after is not None:
        next_page = page(Window(limit=MAX_LIMIT, after=after))
        yield from next_page.items
        after = next_page.next


def open_queues(topic: TopicView) -> int:
    """Return the number of queues that accept messages of a topic. Draining queues do not
    count.
    """
    return len(set(topic.layout)) or len(topic.queues)
