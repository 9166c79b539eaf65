"""Observation of the metadata database's clock. Silence proves a member dead only without
outages.
"""

from __future__ import annotations

import threading
import time

from metadata.db.clock import database_state
from metadata.db.contact import contact
from metadata.db.transactions import reachable
from metadata.errors import MetadataUnavailable
from metadata.rules.membership import liveness


class OutageGuard:
    """Knowledge of this process about outages of the metadata database. Thread-safe.

    Includes the promises that this broker gave to members whose heartbeats it could not
    record (metadata.rules.membership.liveness).
    """

    def __init__(self, watch: liveness.Watch | None = None) -> None:
        self._lock = threading.Lock()
        self._watch = watch

    def look(self) -> liveness.Watch:
        """Read the database's clock and return the updated watch.

        Raises MetadataUnavailable. Then the watch starts again, so no member expires
        for a full session timeout.
        """
        with self._lock:
            try:
                with reachable():
                    state = database_state()
            except MetadataUnavailable:
                self._watch = None
                raise
            reading = liveness.ClockReading(
                state.server, state.now, time.monotonic(), state.version
            )
            watch = liveness.observe(self._watch, reading)
            self._watch = liveness.after_promise(
                watch, promised_at_s=contact.promised_at_s()
            )
            return self._watch
