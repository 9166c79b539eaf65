"""manage.py qcluster: django-q's own command, which ends when all its processes are told to
stop at once.

A service manager sends SIGTERM to each process of a service, and the supervisor passes its
own on. django-q sets an event inside its signal handler. That waits for ever if a second
signal comes meanwhile, or if the process that waits for the event has ended by the signal.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from django_q.cluster import Cluster
from django_q.management.commands import qcluster


class SurelyStopped(Cluster):  # type: ignore[misc]  # django-q has no types
    """A cluster that is deaf from the first signal on, and waits for its sentinel alone."""

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        """Stop the sentinel, which stops the workers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=self.stop_event.set, daemon=True).start()
        self.sentinel.join()


class Command(qcluster.Command):  # type: ignore[misc]
    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal ends it."""
        qcluster.Cluster = SurelyStopped
        super().handle(*args, **options)
