"""Looks at the metadata database's clock: before silence proves that a member is dead."""

from __future__ import annotations

import threading
import time

from metadata.db.clock import database_state
from metadata.db.contact import contact
from metadata.db.transactions import reachable
from metadata.errors import MetadataUnavailable
from metadata.rules.membership import liveness


class OutageGuard:
    """Knowledge of this process about the metadata database's clock, and what its broker
    promised (rules.liveness); safe for threads."""

    def __init__(self, watch: liveness.Watch | None = None) -> None:
        self._lock = threading.Lock()
        self._watch = watch

    def look(self) -> liveness.Watch:
        """The watch after one more look; a failed look forgets everything, so nobody
        expires for a while.
        """
        with self._lock:
            try:
                with reachable():
                    state = database_state()
            except MetadataUnavailable:
                self._watch = None
                raise
            look = liveness.ClockReading(
                state.server, state.now, time.monotonic(), state.version
            )
            watch = liveness.observe(self._watch, look)
            self._watch = liveness.after_promise(
                watch, promised_at_s=contact.promised_at_s()
            )
            return self._watch
