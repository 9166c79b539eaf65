"""Waits for Java clients, which call again immediately. A waiting thread takes a place of a
waiting pull.

So sends and commits find a thread, whatever such clients or strangers do.
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

SHORT_S = 1.0
LOOK_S = 3.5  # between two checks whether the client has hung up or the wait is over
EMPTY: Mapping[int, int] = {}

# If pulls have all places, some of the other threads may wait shortly. A single address
# gets at most half of them.
_SHORT = max(2, (config.threads - config.max_waiters) // 4)
_short = Places(most=_SHORT, most_of_one=2, most_shared=_SHORT // 2)
# Strangers (Forbidden addresses) have a few places of their own, two per address, so that
# they take none from clients.
_strangers = Places(most=max(1, (config.threads - config.max_waiters) // 8), most_of_one=2)


@contextmanager
def waiting_place(key: str, actor: Actor) -> Iterator[float]:
    """Take a place to wait. Yield the longest time to wait in s, 0 if no place is free."""
    owner = longpoll.place_owner(key, key_id=actor.key_id, address=actor.address)
    # The places of pulls first: they are made for long waits.
    with longpoll.waiting_place(owner) as has_place:
        if has_place:
            yield float("inf")
            return
    # By address only: without a key all Java clients would share the half of these places.
    with _short.place(key, [actor.address]) as has_place:
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
    """Hold back the refusal of a client that would call again immediately."""
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
    """Return True if a group has a newer generation than the given generation, or was
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
    stops, or the time is over. The caller has a place.
    """
    look_s = LOOK_S if is_over is not None else float("inf")
    close_old_connections()
    while (remaining_s := until - time.monotonic()) > 0:
        changed = threading.Event()
        with ExitStack() as watching:
            for group_id in generations:
                watching.enter_context(board.watch(group_id, offsets, flag=changed))
            # Checked after the watches are set: they do not report earlier news.
            has_news = any(board.known(queue) > offset for queue, offset in offsets.items())
            if has_news or draining.must_not_wait() or has_changed(generations):
                return
            with limiter.aside():
                changed.wait(min(remaining_s, look_s))
        if is_over is not None and is_over():
            return
