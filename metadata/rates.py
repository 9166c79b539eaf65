"""Limits on sending, per topic and per API key: buckets in the memory of each broker process.

A process may let its share through, the limit divided by the processes that serve now. It counts them every
few seconds in the registry of brokers; while metadata is away the last count stays. Nothing is shared
between processes, so a send pays for its limits with one lock, and without limits with two look-ups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from metadata import acknowledgements, snapshot
from metadata.actors import Actor
from metadata.errors import MetadataUnavailable, RateLimited
from metadata.pictures import TopicInfo
from metadata.rules.rates import Bucket, Rates, wait_s

MOST_BUCKETS = 10_000


class _Buckets:
    """The buckets of this process, by what they limit, the limit's id and its unit."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes = 1
        self._known: dict[tuple[str, int, str], Bucket] = {}

    def of(self, what: str, row: int, unit: str, *, now: float) -> Bucket:
        """A bucket, full at first."""
        if len(self._known) > MOST_BUCKETS:
            self._known = {}
        return self._known.setdefault((what, row, unit), Bucket(float("inf"), now))


_buckets = _Buckets()


def admit(*, topic: TopicInfo, actor: Actor, messages: int, size: Callable[[], int]) -> None:
    """Takes messages, and their `size()` in bytes, from the limits of the topic and of the actor's key.

    Raises RateLimited, and takes nothing, while one of them has not enough; it says how long to wait.
    """
    key = None if actor.key_id is None else snapshot.current().keys.get(actor.key_id)
    limits = [("topic", topic.id, topic.name, topic.rates)]
    if key is not None:
        limits.append(("key", key.id, key.name, key.rates))
    if all(rates.unlimited for *_, rates in limits):
        return
    with _buckets.lock:
        _take(limits, messages, size)


def _take(limits: list[tuple[str, int, str, Rates]], messages: int, size: Callable[[], int]) -> None:
    now, longest, slowest = monotonic(), 0.0, ""
    taken: list[tuple[Bucket, int]] = []
    for what, row, name, rates in limits:
        for unit, limit in (("messages", rates.messages), ("bytes", rates.bytes)):
            if limit is None:
                continue
            bucket = _buckets.of(what, row, unit, now=now)
            amount = messages if unit == "messages" else size()
            wait = wait_s(bucket, rate=limit / _buckets.processes, amount=amount, now=now)
            taken.append((bucket, amount))
            if wait > longest:
                longest, slowest = wait, f"{what} {name} takes {limit} {unit} a second"
    if longest > 0:
        raise RateLimited(
            f"Too much at once: {slowest}, from all brokers together.", retry_after_ms=int(longest * 1000) + 1
        )
    for bucket, amount in taken:
        bucket.level -= amount


def count_processes() -> int:
    """Counts the processes that share the limits now; how many. Keeps the last count if nobody can say."""
    with suppress(MetadataUnavailable):
        _buckets.processes = max(1, acknowledgements.serving())
    return _buckets.processes


def forget() -> None:
    """Empties the buckets: another database, another test."""
    global _buckets
    _buckets = _Buckets()
