"""Shapes of the queues of a topic in the management API; api.py has the calls."""

from __future__ import annotations

from typing import TypedDict


class QueueRow(TypedDict):
    """A queue of a topic. `low`: first offset still stored, `head`: the next to be given; None: node down."""

    queue: int
    number: int
    node: str
    state: str
    low: int | None
    head: int | None


class Unread(TypedDict):
    """Number of messages a group has not read, its slowest instance if it broadcasts; None: node down."""

    group: str
    messages: int | None


class ChangedQueue(TypedDict):
    """A queue that a topic got, or that drains. `queue`: None where it is only planned."""

    queue: int | None
    number: int
    node: str
    state: str


class LayoutChange(TypedDict):
    """Changes that an expansion or a shrinking made, or with `dry_run` would make.

    `moved_share` of all keys (0 to 1) go to another queue; `unread` counts the queues that they leave.
    """

    topic: str
    dry_run: bool
    layout_version: int
    queues: list[ChangedQueue]
    moved_slots: int
    moved_share: float
    unread: list[Unread]


class TagMatches(TypedDict):
    """A tag filter, tried on the `looked_at` last messages of a topic; `away`: nodes that did not answer."""

    looked_at: int
    matching: int
    away: list[str]


class QueueState(QueueRow):
    """A queue with its share of the 1,024 slots; one that is `draining` is retired once all is read."""

    slots: int
    draining: bool
    unread: list[Unread]
