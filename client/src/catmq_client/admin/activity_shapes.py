"""Answers about clients: who sent, who handled messages, and the state of a process."""

from __future__ import annotations

from typing import TypedDict


class Trace(TypedDict):
    """A sampled attempt at a message. `took_ms` is None if only the delivery is recorded.

    `outcome` is handled, failed or delivered. `attempt` counts the failed attempts before.
    """

    group: str
    member: str
    attempt: int
    outcome: str
    at_ms: int
    took_ms: int | None


class TopicProducer(TypedDict):
    """An API key that sent to a topic from an address with a client library.

    Times are ms since 1970 UTC.
    """

    name: str
    address: str
    sdk: str
    first_seen_at_ms: int
    last_seen_at_ms: int
    messages_last_hour: int


class SlowHandler(TypedDict):
    """The handler call that has run longest, and its first message."""

    queue: int
    offset: int
    running_ms: int


class ProcessReport(TypedDict):
    """Threads of a member's process, its messages in memory, and counts since its start."""

    threads: int
    busy: int
    buffered: int
    buffered_bytes: int
    handled: int
    failed: int
    slowest: SlowHandler | None
