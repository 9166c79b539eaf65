"""Keeps a slow metadata database from eating a broker's threads.

Heartbeats, registrations and acquires need metadata; sends and pulls do not. So only so
many threads of a process are inside metadata calls at once, and after several calls in a
row found the database away, further ones are refused at once. No call of a client is the
probe: it would wait for as long as a call may take, and the client would learn nothing. In
a broker a loop asks all the time (`look`), and its first answer lets calls through again. A
process without that loop lets one call at a time through, a second after the last one
ended. The second counts from the end because a call may take longer than that to fail.

A storm of registrations must not hold up the hand-overs that it causes. So acquires have a
pool of places of their own, and heartbeats need none: one thread records all of a process,
and a release follows only on one that was just recorded. Nor must it feed itself: few calls
are inside at once, a few more wait for a place, and each of those that are refused is told
a time of its own to come back, one after the other as fast as calls have lately ended. All
of them again at once would cost more than what they want.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from metadata.errors import Code, MetadataUnavailable
from metadata.limits.concurrency import limiter

PLACES = 4
PATIENCE_S = 1.0  # longest wait for a place
AGAIN_S = (1.0, 10.0)  # soonest and latest return of a call that found none
CALLS = "calls"  # the pool of whatever has none of its own
FAILURES = 2  # each of them may have taken the whole time limit
PAUSE_S = 1.0
# a loop that did not look for so long has ended; one look may take several time limits
WATCHED_S = 30.0


class Bulkhead:
    """Lets `places` threads into the usual pool, where eight times as many may wait for a
    place, and twice as many into each other one; after `failures` in a row nobody until a
    look succeeds, or where nobody looks only a probe, `pause_s` seconds after the last."""

    def __init__(
        self,
        *,
        places: int = PLACES,
        failures: int = FAILURES,
        pause_s: float = PAUSE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._places, self._failures, self._pause_s, self._patience_s = (
            places,
            failures,
            pause_s,
            patience_s,
        )
        self._changed = threading.Condition()
        self._inside: Counter[str | None] = Counter()
        self._waiting = 0
        self._return_times = ReturnTimes(places)
        self._failed = 0
        self._probing = False
        self._next_probe = 0.0
        self._watched_until = float("-inf")

    def look(self, ask: Callable[[], object]) -> bool:
        """Ask the database, and let calls through if it answers; return True then. One pass
        of a loop.
        """
        with self._changed:
            self._watched_until = time.monotonic() + WATCHED_S
        try:
            ask()
        except MetadataUnavailable:
            self._looked(failed=True)
            return False
        self._looked(failed=False)
        return True

    def end_looks(self) -> None:
        with self._changed:
            self._watched_until = float("-inf")

    def _looked(self, *, failed: bool) -> None:
        with self._changed:
            self._watched_until = time.monotonic() + WATCHED_S
            self._failed = self._failed + 1 if failed else 0
            self._changed.notify_all()

    @property
    def watched(self) -> bool:
        return time.monotonic() < self._watched_until

    def check(self) -> None:
        """Raise MetadataUnavailable if a call would be refused now; for callers that queue
        up for one.
        """
        with self._changed:
            self._refuse_if_shut()

    def later(self) -> MetadataUnavailable:
        """The refusal of a call that was not tried because this process has too much to do;
        with its turn.
        """
        with self._changed:
            return self._full()

    def _full(self) -> MetadataUnavailable:
        what = "Too many calls wait for the metadata database."
        return MetadataUnavailable(
            what, code=Code.BUSY, retry_after_ms=self._return_times.next_ms()
        )

    @contextmanager
    def permit(self, pool: str | None = CALLS) -> Iterator[None]:
        """One metadata call; raises MetadataUnavailable without making it when closed, or
        its pool is full.

        Pool None is never full.
        """
        probe = self._enter(pool)
        begun = time.monotonic()
        failed = False
        try:
            yield
        except MetadataUnavailable:
            failed = True
            raise
        finally:
            self._leave(pool, probe=probe, failed=failed, took_s=time.monotonic() - begun)

    def _is_full(self, pool: str | None) -> bool:
        if pool is None:
            return False
        return self._inside[pool] >= (self._places if pool == CALLS else 2 * self._places)

    def _shut(self) -> bool:
        return self._failed >= self._failures

    def _is_refused(self) -> bool:
        return self._shut() and (
            self.watched or self._probing or time.monotonic() < self._next_probe
        )

    def _refuse_if_shut(self) -> None:
        if self._is_refused():
            raise MetadataUnavailable.no_answer()

    def _enter(self, pool: str | None) -> bool:
        """Take a place; whether this call is the probe."""
        if pool == CALLS and self._is_full(pool):
            self._await_place()
        with self._changed:
            self._refuse_if_shut()
            if self._is_full(pool):
                raise self._full()
            self._inside[pool] += 1
            self._probing = self._probing or self._shut()
            return self._shut()

    def _await_place(self) -> None:
        """Return when there is one, or calls are refused, or there will be none in time."""
        with limiter.aside(), self._changed:
            if self._waiting >= 8 * self._places:
                return
            self._waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self._is_refused() or not self._is_full(CALLS), self._patience_s
                )
            finally:
                self._waiting -= 1

    def _leave(self, pool: str | None, *, probe: bool, failed: bool, took_s: float) -> None:
        with self._changed:
            self._inside[pool] -= 1
            self._failed = self._failed + 1 if failed else 0
            if probe:
                self._probing = False
            if self._shut():
                self._next_probe = time.monotonic() + self._pause_s
                self._changed.notify_all()
            elif pool == CALLS:
                self._return_times.ended(took_s)
                self._changed.notify()


class ReturnTimes:
    """Times at which refused calls shall come back, in a bulkhead of so many places. Not
    safe for threads.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._call_s = 0.05  # how long a call takes, of late
        self._next = 0.0  # time.monotonic() of the latest turn that was given

    def ended(self, took_s: float) -> None:
        self._call_s += (took_s - self._call_s) / 16

    def next_ms(self) -> int:
        """In how many ms the next one may come: after the one before, but not late for
        ever.
        """
        soonest_s, latest_s = AGAIN_S
        now = time.monotonic()
        self._next = max(now + soonest_s, self._next + self._call_s / self._places)
        if self._next > now + latest_s:
            self._next = now + random.uniform(latest_s / 2, latest_s)
        return int((self._next - now) * 1000)


bulkhead = Bulkhead()  # of this process
