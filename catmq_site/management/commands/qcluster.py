"""manage.py qcluster: django-q's own command, changed so that it always ends on SIGTERM.

django-q's cluster process has a child, the sentinel, which runs the workers. To stop, the
cluster's signal handler sets `stop_event`, which the sentinel waits for, and joins the
sentinel. Here each process may get SIGTERM twice: from the service manager, which signals
all processes of a service, and from the supervisor, which passes its own SIGTERM on. Then
Event.set() in the handler may block forever: if the second signal interrupts set() of the
first, or if the sentinel has ended by a SIGTERM of its own, because set() waits until each
waiting process has confirmed that it woke.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from django_q.cluster import Cluster
from django_q.management.commands import qcluster


class ReliablyStoppedCluster(Cluster):  # type: ignore[misc]  # django-q has no types
    """A cluster that ignores later signals, and whose handler cannot block in Event.set()."""

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        """Stop the sentinel, which stops the workers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # In a thread, because set() may block if the sentinel has ended. join() returns then.
        threading.Thread(target=self.stop_event.set, daemon=True).start()
        self.sentinel.join()


class Command(qcluster.Command):  # type: ignore[misc]
    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal ends it."""
        # django-q's command looks the class up in its own module.
        qcluster.Cluster = ReliablyStoppedCluster
        super().handle(*args, **options)
