"""Several worker processes: a supervisor forks children and replaces those that end.

The supervisor has no threads and no connections when it forks, so a child inherits neither.
A child whose supervisor has ended finishes its running tasks and ends, too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from django.db import connections

log: logging.Logger = logging.getLogger("catmq.tasks")

ORPHAN_EVERY_S = 1.0
# A child that ended within SHORT_LIFE_S is replaced only after PAUSE_S.
SHORT_LIFE_S, PAUSE_S = 10.0, 5.0
# The supervisor kills children that have not ended this long after drain_s.
GRACE_S = 15.0


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or Ctrl-C. A second signal ends the process at once."""

    def handle_first(number: int, frame: FrameType | None) -> None:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_DFL)
        # In a thread: the handler may interrupt a wait that holds the lock which `stop` needs.
        threading.Thread(target=stop, name="catmq-task-stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle_first)


class Supervisor:
    """Keeps `count` children running until a signal. Each calls `work(number)` and ends with
    the exit code that it returns.

    With `once` a child that ended with 0 is not replaced, and the supervisor ends with the
    last child.
    """

    def __init__(
        self, count: int, work: Callable[[int], int], *, drain_s: float, once: bool = False
    ) -> None:
        self._count, self._work, self._drain_s, self._once = count, work, drain_s, once
        # By process id: (number of the child, monotonic time of its start).
        self._children: dict[int, tuple[int, float]] = {}
        # By number: children to start, and the earliest monotonic time.
        self._start_at: dict[int, float] = dict.fromkeys(range(count), 0.0)
        self._signals = 0

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C, then end the children; a second signal kills them."""
        connections.close_all()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count_signal)
        while not self._signals and (self._start_at or self._children):
            now = time.monotonic()
            for child in [n for n, start_at in self._start_at.items() if start_at <= now]:
                del self._start_at[child]
                # Otherwise the child would write the buffered text a second time.
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    self._run_child(child)
                self._children[pid] = (child, now)
            self._reap()
            time.sleep(0.2)
        self._signal_all(signal.SIGTERM)
        kill_at = time.monotonic() + self._drain_s + GRACE_S
        while self._children:
            if self._signals > 1 or time.monotonic() > kill_at:
                self._signal_all(signal.SIGKILL)
            self._reap()
            time.sleep(0.1)

    def _count_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _run_child(self, number: int) -> None:
        """Run `work` in the child and end the process."""
        code = 1
        try:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, signal.SIG_DFL)
            code = self._work(number)
        except BaseException:
            log.exception("worker process %d failed", number)
        finally:
            sys.stdout.flush()
            # Not sys.exit(): its exception would run the parent's code above os.fork().
            os._exit(code)

    def _reap(self) -> None:
        """Collect the children that have ended and schedule their replacement."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number, started_at = self._children.pop(pid, (None, 0.0))
            # None: not a worker; the application may have started it.
            if number is None or (self._once and status == 0):
                continue
            now = time.monotonic()
            self._start_at[number] = now + (
                PAUSE_S if now - started_at < SHORT_LIFE_S else 0.0
            )
            if not self._signals:
                log.error(
                    "worker process %d (pid %d) ended with %d and is replaced",
                    number,
                    pid,
                    os.waitstatus_to_exitcode(status),
                )

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._children:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                log.debug("worker process %d has ended by itself", pid)


def stop_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop` when the parent of this process has ended."""
    parent = os.getppid()

    def watch() -> None:
        # An orphan gets another parent.
        while os.getppid() == parent:
            time.sleep(ORPHAN_EVERY_S)
        log.error("the supervisor is gone: this process ends, too")
        stop()

    threading.Thread(target=watch, name="catmq-task-parent", daemon=True).start()
