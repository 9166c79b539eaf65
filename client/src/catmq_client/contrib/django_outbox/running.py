"""The relay as a process: takes the lease, passes until it is told to stop, waits when
there is nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, close_old_connections

from catmq_client.contrib.django_outbox.claims import LeaseLost, counts
from catmq_client.contrib.django_outbox.notify import Listener
from catmq_client.contrib.django_outbox.relay import Pass, Relay
from catmq_client.http.backoff import Backoff

log = logging.getLogger("catmq.outbox")

STANDBY_S = 2.0
# A relay that is told of commits looks by itself so often, s, unless it found what nobody
# had told it of in
# the last TRUSTED_S.
TOLD_POLL_S, TRUSTED_S = 1.0, 60.0


class Running:
    """Runs one relay. `say` tells people; `stop` ends it after the pass under way.

    With a `listener` it looks into the outbox when it is told to; and every `poll_s` while
    commits reach it that it is not told of.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        say: Callable[[str], None],
        stop: threading.Event,
        poll_s: float,
        report_s: float,
        listener: Listener | None = None,
    ) -> None:
        self._relay = relay
        self._say = say
        self._stop = stop
        self._poll_s, self._report_s = poll_s, report_s
        self._backoff = Backoff()
        self._sent = self._failed = 0
        self._renewed_at = self._reported_at = float("-inf")
        self._holder = ""
        self._listener = listener
        # A commit was told of since there was nothing to do; and when one was not, if ever.
        self._told, self._was_told, self._missed_at = False, False, float("-inf")

    def forever(self) -> None:
        """Until `stop` is set. Raises Unauthenticated when the brokers do not know the API
        key.
        """
        if self._listener is not None:
            self._listener.wake_at(self._stop)
        try:
            while not self._stop.is_set():
                self._wait(self._turn())
        finally:
            self._relay.claims.release()
            self._say(f"stopped; sent {self._sent}, refused {self._failed}")

    def _wait(self, seconds: float) -> None:
        if self._listener is None:
            self._stop.wait(seconds)
            return
        goes_on = self._told and seconds == 0.0
        self._told = self._listener.wait(seconds) or goes_on

    def _poll(self) -> float:
        """Return how long to wait for messages, s."""
        is_trusted = self._was_told and time.monotonic() - self._missed_at > TRUSTED_S
        return max(self._poll_s, TOLD_POLL_S) if is_trusted else self._poll_s

    def once(self) -> bool:
        """Send what is there now; return True if all of it is sent. Raises LeaseLost if
        another relay works.

        Whether one works that has the lease is seen by waiting: a dead one does not renew
        it.
        """
        over_at = time.monotonic() + self._relay.claims.lease_s + 1.0
        while holder := self._relay.claims.acquire():
            if time.monotonic() > over_at or self._stop.wait(0.1):
                raise LeaseLost(holder)
        done = Pass()
        try:
            while not self._stop.is_set():
                done = self._relay.run_once()
                self._count(done)
                if not done.advanced:
                    break
        finally:
            self._relay.claims.release()
        left = counts(using=self._relay.claims.alias)
        self._say(
            f"sent {self._sent}, refused {self._failed}, left {sum(left)}{_because(done)}"
        )
        return sum(left) == 0

    def _turn(self) -> float:
        """One pass, if it is ours to make and there is anything to do; how long to wait
        then, s.
        """
        close_old_connections()
        try:
            if self._is_standby():
                return STANDBY_S
            if self._relay.claims.idle():
                return self._poll()
            done = self._relay.run_once()
        except LeaseLost:
            self._renewed_at = float("-inf")
            return 0.0
        except (DatabaseError, InterfaceError) as error:
            log.warning("the application's database cannot be used: %s", error)
            return self._backoff.next_s()
        self._renewed_at = time.monotonic()
        self._backoff.reset()
        self._count(done)
        self._report(done)
        return self._until_next(done)

    def _is_standby(self) -> bool:
        if time.monotonic() - self._renewed_at < self._relay.claims.lease_s / 3:
            return False
        holder = self._relay.claims.acquire()
        if holder != self._holder:
            self._holder = holder
            self._say(f"standing by: relay {holder} works" if holder else "working")
        if not holder:
            self._renewed_at = time.monotonic()
        return bool(holder)

    def _until_next(self, done: Pass) -> float:
        if done.advanced:
            return 0.0
        later, poll_s = self._relay.wait_s(), self._poll()
        return poll_s if later is None else min(later, poll_s)

    def _count(self, done: Pass) -> None:
        if done.sent and self._listener is not None:
            # It may have been told of while it was sent.
            self._told = self._told or self._listener.wait(0.0)
            self._was_told = self._was_told or self._told
            self._missed_at = self._missed_at if self._told else time.monotonic()
        self._sent += done.sent
        self._failed += done.failed

    def _report(self, done: Pass) -> None:
        now = time.monotonic()
        if now - self._reported_at < self._report_s:
            return
        self._reported_at = now
        left = counts(using=self._relay.claims.alias)
        self._say(
            f"sent {self._sent}, waiting {left.waiting + left.claimed}, refused {left.failed} "
            f"(held behind them {left.held}){_because(done)}"
        )


def _because(done: Pass) -> str:
    return f"; {done.error}" if done.error is not None else ""
