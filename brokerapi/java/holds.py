"""Waits of the calls of Java clients: until there is news, or to slow a client down.

Java clients call again immediately after an answer, so their calls must wait, and would
occupy many threads. A waiting thread takes a place of those that limit waiting pulls
(longpoll.py), or of a few places for short waits. A call without a place does not wait. So
there are always threads for sends and commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from django.db import close_old_connections

from brokerapi.http import draining, longpoll
from messagestore.heads.heads import board
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.limits.concurrency import limiter
from metadata.limits.places import Places

SHORT_S = 1.0  # longest wait in a place for short waits
CHECK_S = 3.5  # between two calls of `is_over`, such as whether the client has hung up
EMPTY: Mapping[int, int] = {}

# When the places of waiting pulls are taken, a quarter of the remaining threads may wait for
# up to SHORT_S, and half of this quarter for an address.
SHORT_PLACES = max(2, (config.threads - config.max_waiters) // 4)
_short_places = Places(most=SHORT_PLACES, most_per_caller=2, most_shared=SHORT_PLACES // 2)
# Strangers, which are clients at addresses that are not admitted, have a few places of their
# own, two per address, so that they take none from admitted clients.
_strangers = Places(
    most=max(1, (config.threads - config.max_waiters) // 8), most_per_caller=2
)


@contextmanager
def waiting_place(key: str, actor: Actor) -> Iterator[float]:
    """Hold a place to wait during a block. Yield the longest time to wait in s: infinite in
    a place of a pull, SHORT_S in a place for short waits, 0 if no place is free.
    """
    owner = longpoll.place_owner(key, key_id=actor.key_id, address=actor.address)
    # Places of pulls first, because only they allow long waits.
    with longpoll.waiting_place(owner) as has_place:
        if has_place:
            yield float("inf")
            return
    # Limited by address, not by key: the Java clients without a key count as a single key, so they
    # would have only half of these places.
    with _short_places.place(key, [actor.address]) as has_place:
        yield SHORT_S if has_place else 0.0


def pause(key: str, actor: Actor, seconds: float) -> bool:
    """Wait, unless no place is free or the broker stops. Return True if it waited."""
    with waiting_place(key, actor) as max_wait_s:
        if draining.must_not_wait() or not max_wait_s:
            return False
        close_old_connections()
        with limiter.aside():
            # Nothing can wake this wait, so it is short.
            time.sleep(min(seconds, max_wait_s))
        return True


def pause_stranger(address: str) -> None:
    """Wait for SHORT_S before a client at an address that is not admitted is refused, unless
    no place for strangers is free or the broker stops.
    """
    if draining.must_not_wait() or not _strangers.take(address):
        return
    try:
        close_old_connections()
        with limiter.aside():
            time.sleep(SHORT_S)
    finally:
        _strangers.give_back(address)


def read_generations(groups: Iterable[int]) -> dict[int, int]:
    """Return the generations of groups as this process knows them, 0 for unknown groups."""
    infos = snapshot.current().groups
    return {group: infos[group].generation if group in infos else 0 for group in groups}


def has_changed(generations: Mapping[int, int]) -> bool:
    """Return True if a group has a newer generation than in `generations`, or was
    deleted.
    """
    infos = snapshot.current().groups
    # Newer, not other: the snapshot may be older than the given generations.
    return any(
        group not in infos or infos[group].generation > generation
        for group, generation in generations.items()
    )


def wait(
    generations: Mapping[int, int],
    until: float,
    offsets: Mapping[int, int] = EMPTY,
    *,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Wait until a group has a newer generation than in `generations`, a queue has a
    message at or after its offset in `offsets`, `is_over` returns True, the broker
    stops, or `until` (time.monotonic()) has come.

    `generations` must name at least one group: the offsets are watched along with the groups.
    The caller must have a place.
    """
    check_s = CHECK_S if is_over is not None else float("inf")
    close_old_connections()
    while (remaining_s := until - time.monotonic()) > 0:
        changed = threading.Event()
        with ExitStack() as watching:
            for group_id in generations:
                watching.enter_context(board.watch(group_id, offsets, flag=changed))
            # Checked after the watches are set, because they do not report earlier news.
            has_news = any(
                board.durable_head(queue) > offset for queue, offset in offsets.items()
            )
            if has_news or draining.must_not_wait() or has_changed(generations):
                return
            with limiter.aside():
                changed.wait(min(remaining_s, check_s))
        if is_over is not None and is_over():
            return
