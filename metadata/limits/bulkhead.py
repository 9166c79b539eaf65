"""Bulkhead: keeps a slow metadata database from occupying all threads of a broker.

Heartbeats, registrations and acquires need metadata; sends and pulls do not. So only a few
threads of a process are inside metadata calls at the same time. After FAILURES calls in a
row that could not reach the database, the bulkhead is shut: further calls are refused at
once.

A shut bulkhead opens when the database answers again:

* In a broker a loop asks the database all the time (check_database()), and its first
  success opens the bulkhead. No call of a client is the probe, because it would wait for as
  long as a call may take, and the client would learn nothing.
* A process without that loop lets a single call through as a probe, PAUSE_S after the last
  probe ended. The pause counts from the end, because a call may take longer than that to
  fail.

Registrations may come in a storm. They must not hold up the hand-overs that they cause, so
acquires have a pool of places of their own. Heartbeats need none: a single thread records
all heartbeats of a process. Refused calls must not keep the storm going, so each gets a time of
its own to come back, spaced by the duration of recent calls. All refused calls at once
would cost the database more than the work that they ask for.
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
PATIENCE_S = 1.0  # maximum wait for a place
AGAIN_S = (1.0, 10.0)  # earliest and latest return of a call that found no place
CALLS = "calls"  # the pool of all calls that have no pool of their own
FAILURES = 2  # few, because each may have taken the whole time limit
PAUSE_S = 1.0
# Time after its last check at which the loop counts as ended. A check may take several
# time limits.
WATCHED_S = 30.0


class Bulkhead:
    """Limits concurrent metadata calls, and refuses calls while the database is away.

    `places` threads may be inside the pool CALLS, where eight times as many may wait for a
    place, and twice as many in each other pool. The bulkhead is shut after `failures`
    failed calls in a row. Without a loop that checks the database, a probe is admitted
    `pause_s` seconds after the last probe.
    """

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
        self._changed = threading.Condition()  # of a lock that its owner may take again
        self._inside: Counter[str | None] = Counter()
        self._waiting = 0
        self._return_times = ReturnTimes(places)
        self._failed = 0  # failed calls in a row
        self._probing = False
        self._next_probe = 0.0
        self._watched_until = float("-inf")

    def check_database(self, ask: Callable[[], object]) -> bool:
        """Call `ask` on the database, and open the bulkhead if it answers. Return False if
        it does not. Called again and again by a loop.
        """
        with self._changed:
            self._watched_until = time.monotonic() + WATCHED_S
        try:
            ask()
            answered = True
        except MetadataUnavailable:
            answered = False
        with self._changed:
            self._watched_until = time.monotonic() + WATCHED_S
            self._failed = 0 if answered else self._failed + 1
            self._changed.notify_all()
        return answered

    def end_checks(self) -> None:
        """Let calls be the probe again, because the loop has ended."""
        with self._changed:
            self._watched_until = float("-inf")

    @property
    def watched(self) -> bool:
        """True while a loop of this process checks the database."""
        return time.monotonic() < self._watched_until

    def check(self) -> None:
        """Raise MetadataUnavailable if a call would be refused now. For callers that wait
        in a queue of their own before the call.
        """
        with self._changed:
            if self._is_refused():
                raise MetadataUnavailable.no_answer()

    def busy_error(self) -> MetadataUnavailable:
        """Return the error for a call that was not tried because this process is too busy,
        with the time to come back.
        """
        with self._changed:
            return MetadataUnavailable(
                "Too many calls wait for the metadata database.",
                code=Code.BUSY,
                retry_after_ms=self._return_times.next_ms(),
            )

    @contextmanager
    def permit(self, pool: str | None = CALLS) -> Iterator[None]:
        """Hold a place of a pool during a metadata call. Pool None is never full.

        Raises MetadataUnavailable before the call if the bulkhead is shut or the pool is
        full.
        """
        is_probe = self._enter(pool)
        begun = time.monotonic()
        failed = False
        try:
            yield
        except MetadataUnavailable:
            failed = True
            raise
        finally:
            self._leave(
                pool, is_probe=is_probe, failed=failed, took_s=time.monotonic() - begun
            )

    def _is_full(self, pool: str | None) -> bool:
        if pool is None:
            return False
        return self._inside[pool] >= (self._places if pool == CALLS else 2 * self._places)

    def _is_shut(self) -> bool:
        return self._failed >= self._failures

    def _is_refused(self) -> bool:
        return self._is_shut() and (
            self.watched or self._probing or time.monotonic() < self._next_probe
        )

    def _enter(self, pool: str | None) -> bool:
        """Take a place. Return True if this call is the probe."""
        if pool == CALLS and self._is_full(pool):
            self._await_place()
        # Checked under the lock, so that two calls cannot take the last place, or both
        # become the probe.
        with self._changed:
            self.check()
            if self._is_full(pool):
                raise self.busy_error()
            self._inside[pool] += 1
            self._probing = self._probing or self._is_shut()
            return self._is_shut()

    def _await_place(self) -> None:
        """Wait until a place is free, calls are refused, or the patience is over. Return at
        once if too many wait already.
        """
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

    def _leave(
        self, pool: str | None, *, is_probe: bool, failed: bool, took_s: float
    ) -> None:
        with self._changed:
            self._inside[pool] -= 1
            self._failed = self._failed + 1 if failed else 0
            if is_probe:
                self._probing = False
            if self._is_shut():
                self._next_probe = time.monotonic() + self._pause_s
                # All waiting calls are refused now instead of waiting in vain.
                self._changed.notify_all()
            elif pool == CALLS:
                self._return_times.record_call(took_s)
                self._changed.notify()


class ReturnTimes:
    """Times at which refused calls shall come back, for a bulkhead with `places`. Not safe
    for threads.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._call_s = 0.05  # moving average of the duration of a call
        self._next = 0.0  # time.monotonic() of the latest time that was assigned

    def record_call(self, took_s: float) -> None:
        self._call_s += (took_s - self._call_s) / 16

    def next_ms(self) -> int:
        """Return in how many ms the next refused call may come back.

        Each comes after the call before it, at the rate at which calls end.
        """
        earliest_s, latest_s = AGAIN_S
        now = time.monotonic()
        self._next = max(now + earliest_s, self._next + self._call_s / self._places)
        if self._next > now + latest_s:
            # Too many were refused for distinct times within the limit: spread the rest.
            self._next = now + random.uniform(latest_s / 2, latest_s)
        return int((self._next - now) * 1000)


bulkhead = Bulkhead()  # of this process
