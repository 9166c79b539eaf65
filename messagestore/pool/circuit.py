"""Keeps a node that is away from eating this process's threads.

    closed    everybody goes through
    open      everybody is answered at once, but one probe after each pause (0.5 s, doubled up
              to 5 s)

It opens after FAILURES calls in a row that found the node away (refused, timed out,
connection lost), after one that took SILENT_S to find out, and as soon as the node is
*silent*: statements wait for it and none was answered for SILENT_S. A server that is frozen
takes connections and says nothing, so without that rule each thread would find out by
itself. Any answer closes it, errors included: whoever answers is not away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from messagestore.engine import db_errors
from metadata.errors import NodeUnavailable

FAILURES = 2
SILENT_S = 2.0  # no statement of ours takes so long on a node where others are answered
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
_LEAST_WAIT_MS = 100


class Permit:
    """One call through a circuit; `asked` says that the node was reached, so that the end
    tells of it.
    """

    def __init__(self, *, probe: bool) -> None:
        self.begun = time.monotonic()
        self.probe = probe
        self.asked = False

    def lasts(self, seconds: float) -> bool:
        """Return True if it has been under way for so long."""
        return time.monotonic() - self.begun >= seconds


class Circuit:
    """The circuit of one node in one process; safe for all its threads."""

    def __init__(self, name: str, *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._name = name
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._failed = 0
        self._open = False
        self._probing = False
        self._pause_s = first_pause_s
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Return True if calls are answered without asking the node."""
        return self._open

    def is_due(self) -> bool:
        """Return True if it is open and a probe may go."""
        return self._open and not self._probing and time.monotonic() >= self._probe_at

    def check(self) -> None:
        """Raise NodeUnavailable while it is open; for callers that wait for a place."""
        if self._open:
            raise self._refusal()

    @contextmanager
    def permit(self, *, may_probe: bool) -> Iterator[Permit]:
        """One call. Raises NodeUnavailable without making it while open; what the call
        raises goes on.
        """
        permit = self.enter(may_probe=may_probe)
        try:
            yield permit
        except BaseException as error:
            self.end(permit, error)
            raise
        self.end(permit)

    def enter(self, *, may_probe: bool) -> Permit:
        """Begin one call, which `end` must end. Raises NodeUnavailable while open, except
        for a probe.
        """
        if not self._open:
            return Permit(probe=False)
        with self._lock:
            if not self._open:
                return Permit(probe=False)
            if self._probing or not may_probe or time.monotonic() < self._probe_at:
                raise self._refusal()
            self._probing = True
            return Permit(probe=True)

    def end(self, permit: Permit, error: BaseException | None = None) -> None:
        """End a call, and learn from what it raised."""
        if isinstance(error, db_errors.Unreachable) or (
            isinstance(error, db_errors.Ambiguous) and error.lost
        ):
            self._failure(permit)
            return
        asked = permit.asked and not isinstance(error, db_errors.SlowNode)
        answered = asked or isinstance(error, db_errors.Final)
        if answered and (self._failed or self._open):
            with self._lock:
                self._failed, self._open = 0, False
        if permit.probe:
            self._probing = False

    def trip(self) -> None:
        """Open it: the node is silent. The next probe may go at once."""
        with self._lock:
            if not self._open:
                self._open, self._pause_s, self._probe_at = (
                    True,
                    self._first_pause_s,
                    time.monotonic(),
                )

    def _failure(self, permit: Permit) -> None:
        with self._lock:
            self._failed += 1
            if permit.probe:
                self._probing = False
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
                self._probe_at = time.monotonic() + self._pause_s
            elif (self._failed >= FAILURES or permit.lasts(SILENT_S)) and not self._open:
                self._open, self._pause_s = True, self._first_pause_s
                self._probe_at = time.monotonic() + self._pause_s

    def _refusal(self) -> NodeUnavailable:
        left_ms = int((self._probe_at - time.monotonic()) * 1000)
        return NodeUnavailable(
            f"Node {self._name} is away; it is tried again in a moment.",
            retry_after_ms=max(_LEAST_WAIT_MS, left_ms),
        )
