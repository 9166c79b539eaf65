"""Failures that are expected now and then, in the log: a line at its begin and one at its
end.

A database that is away fails every call and every loop, several times a second. The log
needs to say when that began, why, and how long it lasted; the same a thousand times hides
everything else.
"""

from __future__ import annotations

import logging
import threading
import time

AGAIN_S = 60.0  # between two lines about an outage that lasts
QUIET_S = 5.0  # one that begins so soon after another is told only if it lasts as long


class Outage:
    """One thing that may be away. Safe for threads."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` is away, as in "the metadata database"."""
        self._log, self._what = log, what
        self._guard = threading.Lock()
        self._since: float | None = None
        self._told_at = float("-inf")  # the last line about its being away
        self._told = False  # of this outage
        self._failures = 0

    def failed(self, why: object) -> None:
        now = time.monotonic()
        with self._guard:
            if self._since is None:
                self._since, self._told, self._failures = now, False, 0
            self._failures += 1
            if now - self._told_at < (AGAIN_S if self._told else QUIET_S):
                return
            first, self._told, self._told_at = not self._told, True, now
            lasted_s = now - self._since
        if first:
            self._log.warning("%s does not answer: %s", self._what, why)
        else:
            self._log.warning(
                "%s has not answered for %.0f s: %s", self._what, lasted_s, why
            )

    def ended(self) -> None:
        if self._since is None:
            return
        with self._guard:
            since, self._since = self._since, None
            told, failures = self._told, self._failures
        if told and since is not None:
            lasted_s = time.monotonic() - since
            self._log.warning(
                "%s answers again after %.1f s and %d failures",
                self._what,
                lasted_s,
                failures,
            )
