"""Several worker processes: forked children, and a supervisor that replaces those that end.

The supervisor has no threads and no connections, so a child begins with nothing of its
parent's. A child whose supervisor is gone ends in order.
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

log = logging.getLogger("catmq.tasks")

ORPHAN_EVERY_S = 1.0
# A child that ends sooner than this is replaced later, s.
SHORT_LIFE_S, PAUSE_S = 10.0, 5.0
# Beyond the time that children have to end, s.
GRACE_S = 15.0


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and Ctrl-C; the second of them ends the process at once.

    In a thread: a handler that interrupts a wait, which holds a lock, would wait for
    itself.
    """

    def first(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_DFL)
        threading.Thread(target=stop, name="catmq-task-stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, first)


class Supervisor:
    """Keeps `count` children running `work(number)`, which returns an exit code, until a
    signal.

    With `once` a child that ended well is not replaced, and the supervisor ends with the
    last one.
    """

    def __init__(
        self, count: int, work: Callable[[int], int], *, drain_s: float, once: bool = False
    ) -> None:
        self._count, self._work, self._drain_s, self._once = count, work, drain_s, once
        self._children: dict[int, tuple[int, float]] = {}
        # Children to start, and not before when, monotonic.
        self._due: dict[int, float] = dict.fromkeys(range(count), 0.0)
        self._signals = 0

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C, then end the children; a second signal kills them."""
        connections.close_all()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)
        while not self._signals and (self._due or self._children):
            self._start_due()
            self._reap()
            time.sleep(0.2)
        self._end_all()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due_at in self._due.items() if due_at <= now]:
            del self._due[number]
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                self._be_child(number)
            self._children[pid] = (number, now)

    def _be_child(self, number: int) -> None:
        code = 1
        try:
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, signal.SIG_DFL)
            code = self._work(number)
        except BaseException:
            log.exception("worker process %d failed", number)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number, since = self._children.pop(pid, (None, 0.0))
            if number is None:
                continue
            if self._once and status == 0:
                continue
            now = time.monotonic()
            self._due[number] = now + (PAUSE_S if now - since < SHORT_LIFE_S else 0.0)
            if not self._signals:
                what = "worker process %d (pid %d) ended with %d and is replaced"
                log.error(what, number, pid, os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        self._signal_all(signal.SIGTERM)
        give_up_at = time.monotonic() + self._drain_s + GRACE_S
        while self._children:
            if self._signals > 1 or time.monotonic() > give_up_at:
                self._signal_all(signal.SIGKILL)
            self._reap()
            time.sleep(0.1)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._children:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                log.debug("worker process %d has ended by itself", pid)


def stop_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop` when the parent of this process is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_EVERY_S)
        log.error("the supervisor is gone: this process ends, too")
        stop()

    threading.Thread(target=watch, name="catmq-task-parent", daemon=True).start()
