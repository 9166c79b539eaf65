"""Outages in the log: a line when a failure begins and a line when it ends.

A database that is away fails every call and every loop, several times a second. The log
shall show when and why that began, and how long it lasted. A thousand equal lines would hide
everything else.
"""

from __future__ import annotations

import logging
import threading
import time

AGAIN_S = 60.0  # pause between two lines about the same outage
# An outage that begins within this time after another line is logged only when that time is over.
QUIET_S = 5.0


class Outage:
    """Logs the outages of a subject. Safe for threads."""

    def __init__(self, log: logging.Logger, subject: str) -> None:
        """`subject` begins the log lines, as in "the metadata database"."""
        self._log, self._subject = log, subject
        self._guard = threading.Lock()
        self._since: float | None = None  # begin of the present outage
        self._logged_at = float("-inf")  # the last line that a failure caused
        self._is_logged = False  # of the present outage
        self._failures = 0

    def failed(self, why: object) -> None:
        """Count a failed call. Log a line if one is due."""
        now = time.monotonic()
        with self._guard:
            if self._since is None:
                self._since, self._is_logged, self._failures = now, False, 0
            self._failures += 1
            if now - self._logged_at < (AGAIN_S if self._is_logged else QUIET_S):
                return
            is_first, self._is_logged, self._logged_at = not self._is_logged, True, now
            lasted_s = now - self._since
        if is_first:
            self._log.warning("%s does not answer: %s", self._subject, why)
        else:
            self._log.warning(
                "%s has not answered for %.0f s: %s", self._subject, lasted_s, why
            )

    def ended(self) -> None:
        """Count a successful call. Log a line if it ends an outage that was logged."""
        # Nearly every call succeeds outside an outage, and takes no lock then.
        if self._since is None:
            return
        with self._guard:
            since, self._since = self._since, None
            was_logged, failures = self._is_logged, self._failures
        if was_logged and since is not None:
            lasted_s = time.monotonic() - since
            self._log.warning(
                "%s answers again after %.1f s and %d failures",
                self._subject,
                lasted_s,
                failures,
            )
