"""Threads of a broker process, each of which repeats one bounded pass of background work.

gunicorn starts the loops of a worker after the fork and stops them when the worker leaves. A
pass that fails is logged, and the pause doubles up to MAX_PAUSE_S, so a database that is down
is not flooded with calls. _FailureLog keeps the log short, too. table.py lists the loops.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django.db import close_old_connections

from messagestore.heads.heads import board
from metadata.cache import snapshot
from metadata.db import leases
from metadata.errors import CatmqError, Unavailable
from metadata.membership import granted_queues, heartbeats
from metadata.outages import AGAIN_S, Outage

log = logging.getLogger(__name__)
# After a failure the pause doubles with each further failure, up to MAX_PAUSE_S. The base is
# the loop's own pause, or this if that is shorter; the first pause is twice the base.
MIN_FAILURE_BASE_S = 0.05
MAX_PAUSE_S = 5.0
# A lease lasts this many pauses. When its holder dies, another process takes over after that.
LEASE_PASSES = 3
NODE_LOOPS_EVERY_S = 0.2  # pause between two looks for nodes that were added or removed


@dataclass(frozen=True, slots=True)
class Loop:
    """Background work of a broker process: about every `every_s` seconds a pass, in a thread.

    `purpose`: a sentence for the portal's page of jobs. `finish`: called once, after the last
    pass. `jitter`: the fraction by which each pause varies. `lease`: name of the lease whose
    holder makes the passes, so that one process of all brokers does the work; "" if every
    process does it.
    """

    name: str
    every_s: float
    run_once: Callable[[], object]
    finish: Callable[[], object] | None = None
    jitter: float = 0.2
    purpose: str = ""
    lease: str = ""


@dataclass(frozen=True, slots=True)
class NodeLoops:
    """A loop for each of the nodes that `nodes` lists now, made by `loop`.

    When a node disappears from the list, its loop ends after the pass that is running.
    """

    name: str
    nodes: Callable[[], Collection[int]]
    loop: Callable[[int], Loop]
    every_s: float = 0.0
    purpose: str = ""


def leased(
    name: str,
    every_s: float,
    run_once: Callable[[], object],
    *,
    purpose: str = "",
    first: Callable[[], object] | None = None,
) -> Loop:
    """Return a loop whose passes are made by one process of all brokers, the lease's holder.

    Every process runs `first` in each pass, before it asks for the lease; so `first` is what
    fails while the metadata database is away. The lease only saves work: two holders at once
    would be harmless. A process that stops releases it, so the next one need not wait for its
    end.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"
    lease = leases.LeaseHolder(name, holder, ttl_s=LEASE_PASSES * every_s)

    def pass_if_holder() -> object:
        if first is not None:
            first()
        return run_once() if lease.acquire() else None

    return Loop(
        name, every_s, pass_if_holder, finish=lease.release, purpose=purpose, lease=name
    )


class LoopThreads:
    """Runs loops, each in a thread of its own, until `stop`."""

    def __init__(self, listed: Sequence[Loop | NodeLoops]) -> None:
        self._loops = [entry for entry in listed if isinstance(entry, Loop)]
        updates = [self._update(entry) for entry in listed if isinstance(entry, NodeLoops)]
        if updates:
            self._loops.append(
                Loop(
                    "node loops",
                    NODE_LOOPS_EVERY_S,
                    lambda: [update() for update in updates],
                )
            )
        self._guard = threading.Lock()
        self._stopping = False
        self._threads: dict[str, _LoopThread] = {}

    def start(self) -> None:
        for loop in self._loops:
            self._start(loop)

    def wake(self, name: str) -> None:
        """End the pause of a loop: its next pass begins now. A signal handler may call it."""
        thread = self._threads.get(name)
        if thread is not None:
            thread.wake()

    def stop(self, *, limit_s: float = 5.0) -> None:
        """Ask all loops to end, and wait for their last passes, for `limit_s` in total."""
        with self._guard:
            self._stopping = True
            threads = list(self._threads.values())
            self._threads = {}
        for thread in threads:
            thread.end()
        # A pass may be waiting for one of these events.
        for wake in (board.wake_all, heartbeats.wake, granted_queues.wake, snapshot.wake):
            wake()
        deadline = time.monotonic() + limit_s
        for thread in threads:
            thread.join(deadline - time.monotonic())

    def _start(self, loop: Loop) -> None:
        # After `stop` has taken the threads, a new one would never be asked to end.
        with self._guard:
            if not self._stopping and loop.name not in self._threads:
                self._threads[loop.name] = _LoopThread(loop)

    def _update(self, entry: NodeLoops) -> Callable[[], None]:
        """Return a function that starts loops for new nodes and ends those of removed ones."""
        loops: dict[int, Loop] = {}

        def update() -> None:
            nodes = set(entry.nodes())
            for node in loops.keys() - nodes:
                with self._guard:
                    thread = self._threads.pop(loops.pop(node).name, None)
                if thread is not None:
                    thread.end()
            for node in nodes - loops.keys():
                loops[node] = entry.loop(node)
                self._start(loops[node])

        return update


class _LoopThread:
    """Runs the passes of one loop in a thread of its own."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"loop-{loop.name}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """End the pause of the loop: its next pass begins now."""
        self._wake.set()

    def end(self) -> None:
        self._ending.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            log.warning(
                "%s did not stop in time; it ends with the process", self._thread.name
            )

    def _run(self) -> None:
        loop, pause_s, failures = self._loop, 0.0, 0
        failure_log = _FailureLog(loop.name)
        while True:
            # Jitter keeps workers that start together from asking a database at the same
            # moments. `wake` and `end` end the pause.
            self._wake.wait(pause_s * random.uniform(1 - loop.jitter, 1 + loop.jitter))
            self._wake.clear()
            if self._ending.is_set():
                break
            try:
                loop.run_once()
            except Exception as error:  # noqa: BLE001 - a loop lives on: it logs and tries again
                failures += 1
                failure_log.failed(error)
                # A connection that broke would fail in every later pass.
                close_old_connections()
            else:
                failures = 0
                failure_log.ended()
            base_s = max(loop.every_s, MIN_FAILURE_BASE_S) if failures else loop.every_s
            longest_pause_s = max(loop.every_s, MAX_PAUSE_S)
            pause_s = min(longest_pause_s, base_s * 2 ** min(failures, 10))
        try:
            if loop.finish is not None:
                loop.finish()
        except CatmqError as error:
            log.info("Loop %s ended early: %s", loop.name, error.detail)
        close_old_connections()


class _FailureLog:
    """Writes the failures of one loop to the log.

    An outage of a database has one line at its begin and one at its end. A bug has its
    traceback, and one line a minute while it stays the same.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outage = Outage(log, f"Loop {name}: a database")
        self._bug = ""
        self._logged_at = 0.0
        self._count = 0

    def failed(self, error: Exception) -> None:
        if isinstance(error, Unavailable):
            self._outage.failed(error.detail)
            return
        now, bug = time.monotonic(), repr(error)
        self._count += 1
        if bug != self._bug:
            log.error("Loop %s failed", self._name, exc_info=error)
        elif now - self._logged_at >= AGAIN_S:
            log.error(
                "Loop %s failed for the %dth time in a row: %s",
                self._name,
                self._count,
                bug,
            )
        else:
            return
        self._bug, self._logged_at = bug, now

    def ended(self) -> None:
        self._outage.ended()
        if self._count:
            log.warning("Loop %s works again after %d failures", self._name, self._count)
        self._bug, self._count = "", 0
