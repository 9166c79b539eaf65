"""The circuit breaker of a node: while the node is unreachable, calls fail without waiting
for it.

    closed    every call goes to the node
    open      calls fail at once, except for a probe after each pause (0.5 s, doubled up to 5 s,
              for a node on several servers up to 1 s: another one may take over at any time)

A circuit opens in three cases:

- FAILURES calls in a row found the node unreachable (refused, timed out, connection lost).
- A single such call took SILENT_S or longer.
- The node is *silent*: statements wait for it, and none was answered for SILENT_S. A frozen
  server accepts connections and never answers, so without this rule every thread would wait
  for its own timeout.

Any answer closes it, even an error: a node that answers is reachable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from messagestore.engine import db_errors
from metadata.errors import NodeUnavailable

FAILURES = 2
SILENT_S = 2.0  # longer than any statement takes on a node that answers others
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S, MAX_PAUSE_OF_LISTS_S = 5.0, 1.0
_MIN_RETRY_MS = 100


class Permit:
    """A call through a circuit.

    `reached` is set once the node accepted a session, so the end of the call shows if it
    answers.
    """

    def __init__(self, *, probe: bool) -> None:
        self.began_at = time.monotonic()
        self.probe = probe
        self.reached = False

    def has_lasted(self, seconds: float) -> bool:
        """Return True if the call began at least `seconds` ago."""
        return time.monotonic() - self.began_at >= seconds


class Circuit:
    """The circuit of one node in one process. Thread-safe."""

    def __init__(
        self,
        name: str,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        max_pause_s: float = MAX_PAUSE_S,
    ) -> None:
        self._name = name
        self._first_pause_s, self._max_pause_s = first_pause_s, max_pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._open = False
        self._probing = False
        self._pause_s = first_pause_s
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Return True if calls fail without reaching the node."""
        return self._open

    def is_due(self) -> bool:
        """Return True if the circuit is open and a probe may start."""
        return self._open and not self._probing and time.monotonic() >= self._probe_at

    def check(self) -> None:
        """Raise NodeUnavailable while it is open; for calls that wait for a free
        connection.
        """
        if self._open:
            raise self._unreachable_error()

    @contextmanager
    def permit(self, *, may_probe: bool) -> Iterator[Permit]:
        """Allow a call, count its exception and raise it again.

        Raises NodeUnavailable without making the call while the circuit is open.
        """
        permit = self.enter(may_probe=may_probe)
        try:
            yield permit
        except BaseException as error:
            self.end(permit, error)
            raise
        self.end(permit)

    def enter(self, *, may_probe: bool) -> Permit:
        """Begin a call, which has to be ended with `end`.

        Raises NodeUnavailable while the circuit is open, unless this call becomes the
        probe.
        """
        # Without the lock first: every request comes through here.
        if not self._open:
            return Permit(probe=False)
        with self._lock:
            if not self._open:
                return Permit(probe=False)
            if self._probing or not may_probe or time.monotonic() < self._probe_at:
                raise self._unreachable_error()
            self._probing = True
            return Permit(probe=True)

    def end(self, permit: Permit, error: BaseException | None = None) -> None:
        """End a call and learn from its exception if the node is reachable."""
        if isinstance(error, db_errors.Unreachable) or (
            isinstance(error, db_errors.Ambiguous) and error.lost
        ):
            with self._lock:
                self._failures += 1
                if permit.probe:
                    self._probing = False
                    self._pause_s = min(2 * self._pause_s, self._max_pause_s)
                    self._probe_at = time.monotonic() + self._pause_s
                elif not self._open and (
                    self._failures >= FAILURES or permit.has_lasted(SILENT_S)
                ):
                    self._open, self._pause_s = True, self._first_pause_s
                    self._probe_at = time.monotonic() + self._pause_s
            return
        # SlowNode is neutral: the caller stopped waiting, so nothing is known about the
        # node. Final is an answer even if the session was not complete yet.
        reached = permit.reached and not isinstance(error, db_errors.SlowNode)
        answered = reached or isinstance(error, db_errors.Final)
        if answered and (self._failures or self._open):
            with self._lock:
                self._failures, self._open = 0, False
        if permit.probe:
            self._probing = False

    def trip(self) -> None:
        """Open the circuit of a silent node. The first probe may start at once."""
        with self._lock:
            if not self._open:
                self._open, self._pause_s, self._probe_at = (
                    True,
                    self._first_pause_s,
                    time.monotonic(),
                )

    def _unreachable_error(self) -> NodeUnavailable:
        wait_ms = int((self._probe_at - time.monotonic()) * 1000)
        return NodeUnavailable(
            f"Node {self._name} is away; it is tried again in a moment.",
            retry_after_ms=max(_MIN_RETRY_MS, wait_ms),
        )
