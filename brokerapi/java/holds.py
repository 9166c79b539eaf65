"""Waits for Java clients, which ask again at once. A thread that waits takes a place of a waiting pull.

So, whatever such clients or strangers ask for, sends and commits find a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import close_old_connections

from brokerapi.http import draining, longpoll
from metadata.config import config
from metadata.limits.concurrency import limiter
from metadata.limits.places import Places

SHORT_S = 1.0

# Where pulls have all places, some of the other threads wait for a moment.
_short = Places(most=max(1, (config.threads - config.max_waiters) // 4), most_of_one=2)


@contextmanager
def place(who: str) -> Iterator[float]:
    """Take a place to wait, and give the longest time for it, s: 0 if none is free."""
    if longpoll.take_place_for(who):
        try:
            yield float("inf")
        finally:
            longpoll.give_back_place_of(who)
    elif _short.take(who):
        try:
            yield SHORT_S
        finally:
            _short.give_back(who)
    else:
        yield 0.0


def pause(who: str, seconds: float) -> bool:
    """Wait, unless no place is free or the broker stops; return True if it waited."""
    with place(who) as most_s:
        if draining.hurries() or not most_s:
            return False
        close_old_connections()
        with limiter.aside():
            time.sleep(min(seconds, most_s))
        return True
