"""manage.py qcluster: django-q's own command, changed so that it always ends on SIGTERM.

A service manager sends SIGTERM to each process of a service, and the supervisor passes its
own on. django-q sets an event inside its signal handler. That blocks forever if a second
signal arrives meanwhile, or if the process that waits for the event was ended by its own
SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from django_q.cluster import Cluster
from django_q.management.commands import qcluster


class ReliablyStoppedCluster(Cluster):  # type: ignore[misc]  # django-q has no types
    """A cluster that ignores all signals after the first, and waits only for its
    sentinel.
    """

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        """Stop the sentinel, which stops the workers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # Set in a thread: set() may block on the event's lock, which the interrupted code
        # may hold.
        threading.Thread(target=self.stop_event.set, daemon=True).start()
        self.sentinel.join()


class Command(qcluster.Command):  # type: ignore[misc]
    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal ends it."""
        qcluster.Cluster = ReliablyStoppedCluster
        super().handle(*args, **options)
