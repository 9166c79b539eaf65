"""The loop of a relay process: acquire the lease, run passes until it is stopped, wait while
there is nothing to send.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, close_old_connections

from catmq_client.contrib.django_outbox.claims import LeaseLost, count_rows
from catmq_client.contrib.django_outbox.notify import Listener
from catmq_client.contrib.django_outbox.relay import PassResult, Relay
from catmq_client.http.backoff import Backoff

log: logging.Logger = logging.getLogger("catmq.outbox")

STANDBY_S = 2.0
# While notifications arrive, the relay polls only every NOTIFIED_POLL_S. Once it finds
# messages without a notification, it polls at its normal pace for TRUST_AFTER_S.
NOTIFIED_POLL_S, TRUST_AFTER_S = 1.0, 60.0


class RelayLoop:
    """Runs one relay. `say` prints a line for people; `stop` ends the loop after the current
    pass.

    With a `listener` the relay runs a pass when it is notified of a commit. It polls every
    `poll_s` as long as commits reach it without a notification.
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
        # Whether a notification came since the outbox was last empty, whether any ever came,
        # and when messages last came without a notification.
        self._notified, self._ever_notified, self._missed_at = False, False, float("-inf")

    def run(self) -> None:
        """Run passes until `stop` is set. Raises Unauthenticated if the brokers do not know
        the API key.
        """
        if self._listener is not None:
            self._listener.wake_at(self._stop)
        try:
            while not self._stop.is_set():
                wait_s = self._turn()
                if self._listener is None:
                    self._stop.wait(wait_s)
                else:
                    # A pass that follows at once still serves the last notification.
                    still_notified = self._notified and wait_s == 0.0
                    self._notified = self._listener.wait(wait_s) or still_notified
        finally:
            self._relay.claims.release()
            self._say(f"stopped; sent {self._sent}, refused {self._failed}")

    def _poll_interval_s(self) -> float:
        is_trusted = (
            self._ever_notified and time.monotonic() - self._missed_at > TRUST_AFTER_S
        )
        return max(self._poll_s, NOTIFIED_POLL_S) if is_trusted else self._poll_s

    def run_once(self) -> bool:
        """Send the messages in the outbox now. Return True if none is left. Raises LeaseLost
        if another relay is active.
        """
        # A holder that is dead does not renew its lease: wait until it would have expired.
        deadline = time.monotonic() + self._relay.claims.lease_s + 1.0
        while holder := self._relay.claims.acquire():
            if time.monotonic() > deadline or self._stop.wait(0.1):
                raise LeaseLost(holder)
        result = PassResult()
        try:
            while not self._stop.is_set():
                result = self._relay.run_once()
                self._count(result)
                if not result.advanced:
                    break
        finally:
            self._relay.claims.release()
        rows_left = count_rows(using=self._relay.claims.alias)
        self._say(
            f"sent {self._sent}, refused {self._failed}, left {sum(rows_left)}"
            f"{_error_suffix(result)}"
        )
        return sum(rows_left) == 0

    def _turn(self) -> float:
        """Run one pass if this relay has the lease and the outbox is not empty. Return the
        seconds to wait before the next turn.
        """
        close_old_connections()
        try:
            # The lease is renewed at a third of its time; each pass renews it, too.
            if time.monotonic() - self._renewed_at >= self._relay.claims.lease_s / 3:
                holder = self._relay.claims.acquire()
                if holder != self._holder:
                    self._holder = holder
                    self._say(f"standing by: relay {holder} works" if holder else "working")
                if holder:
                    return STANDBY_S
                self._renewed_at = time.monotonic()
            if self._relay.claims.is_idle():
                return self._poll_interval_s()
            result = self._relay.run_once()
        except LeaseLost:
            # Acquire the lease again in the next turn.
            self._renewed_at = float("-inf")
            return 0.0
        except (DatabaseError, InterfaceError) as error:
            log.warning("the application's database cannot be used: %s", error)
            return self._backoff.next_s()
        self._renewed_at = time.monotonic()
        self._backoff.reset()
        self._count(result)
        if time.monotonic() - self._reported_at >= self._report_s:
            self._reported_at = time.monotonic()
            rows = count_rows(using=self._relay.claims.alias)
            self._say(
                f"sent {self._sent}, waiting {rows.waiting + rows.claimed}, "
                f"refused {rows.failed} (held behind them {rows.held}){_error_suffix(result)}"
            )
        if result.advanced:
            return 0.0
        retry_s, poll_s = self._relay.wait_s(), self._poll_interval_s()
        return poll_s if retry_s is None else min(retry_s, poll_s)

    def _count(self, result: PassResult) -> None:
        if result.sent and self._listener is not None:
            # The notification of these messages may have arrived during the pass.
            self._notified = self._notified or self._listener.wait(0.0)
            self._ever_notified = self._ever_notified or self._notified
            self._missed_at = self._missed_at if self._notified else time.monotonic()
        self._sent += result.sent
        self._failed += result.failed


def _error_suffix(result: PassResult) -> str:
    return f"; {result.error}" if result.error is not None else ""
