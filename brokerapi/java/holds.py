"""Waits for Java clients, which ask again at once. A thread that waits takes a place of a
waiting pull.

So, whatever such clients or strangers ask for, sends and commits find a thread.
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
LOOK_S = 3.5  # between two looks whether a wait is over, as when a client is gone
EMPTY: Mapping[int, int] = {}

# Where pulls have all places, some of the other threads wait for a moment, half of them for
# one address.
_SHORT = max(2, (config.threads - config.max_waiters) // 4)
_short = Places(most=_SHORT, most_of_one=2, most_shared=_SHORT // 2)
# Strangers have a few of their own, two for an address: they take none from those who are
# let in.
_strangers = Places(most=max(1, (config.threads - config.max_waiters) // 8), most_of_one=2)


@contextmanager
def waiting_place(who: str, actor: Actor) -> Iterator[float]:
    """Take a place to wait, and give the longest time for it, s: 0 if none is free."""
    asker = longpoll.place_owner(who, key_id=actor.key_id, address=actor.address)
    if longpoll.take_place(asker):
        try:
            yield float("inf")
        finally:
            longpoll.give_back_place(asker)
        return
    # By address only: without a key all Java clients would share the half of these places.
    with _short.place(who, [actor.address]) as is_taken:
        yield SHORT_S if is_taken else 0.0


def pause(who: str, actor: Actor, seconds: float) -> bool:
    """Wait, unless no place is free or the broker stops; return True if it waited."""
    with waiting_place(who, actor) as most_s:
        if draining.must_not_wait() or not most_s:
            return False
        close_old_connections()
        with limiter.aside():
            time.sleep(min(seconds, most_s))
        return True


def pause_stranger(address: str) -> None:
    """Hold back the answer to a client that is not let in, and would ask again at once;
    bounded.
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
    """Return the generations of groups as this process knows them, 0 for one that it does
    not know.
    """
    known = snapshot.current().groups
    return {group: known[group].generation if group in known else 0 for group in groups}


def has_changed(seen: Mapping[int, int]) -> bool:
    """Return True if a group has another generation than was seen; the snapshot may be
    older than that.
    """
    known = snapshot.current().groups
    return any(
        group not in known or known[group].generation > at for group, at in seen.items()
    )


def wait(
    seen: Mapping[int, int],
    until: float,
    offsets: Mapping[int, int] = EMPTY,
    *,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Return when a group has another generation than was `seen`, a queue messages behind
    the offset given for it, the client is gone, the broker stops, or the time is over. The
    caller has a place."""
    look_s = LOOK_S if is_over is not None else float("inf")
    close_old_connections()
    while (left_s := until - time.monotonic()) > 0:
        changed = threading.Event()
        with ExitStack() as watching:
            for group_id in seen:
                watching.enter_context(board.watch(group_id, offsets, flag=changed))
            has_news = any(board.known(queue) > offset for queue, offset in offsets.items())
            if has_news or draining.must_not_wait() or has_changed(seen):
                return
            with limiter.aside():
                changed.wait(min(left_s, look_s))
        if is_over is not None and is_over():
            return
