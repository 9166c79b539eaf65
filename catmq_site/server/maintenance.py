"""Every loop that runs inside a broker process, and the only place where the server starts
threads.

gunicorn starts the loops of a worker after the fork and stops them when the worker leaves.
A loop is (name, every, run_once): one bounded pass, then a pause. A pass that fails is
logged, and the pause doubles up to MAX_PAUSE_S, so a database that is down is not flooded
with calls; nor is the log, see _FailureLog. What runs every minute or more rarely is a
schedule of django-q instead (schedules.py).
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from django.db import close_old_connections

from brokerapi.http import group_metrics, metrics
from catmq_site.server import master, metadata_loops
from catmq_site.server.broker_loop import BrokerLoop
from messagestore.consume import java_starts, node_owners
from messagestore.heads import head_watcher
from messagestore.heads.heads import board
from messagestore.heads.partitions import Ahead
from messagestore.nodes import corruption_alarms, registry
from messagestore.nodes.disks import DiskWatch
from messagestore.pool import node_pools
from messagestore.produce import delayed_delivery
from messagestore.retries import lost_leases, redrives
from messagestore.shares import upkeep
from messagestore.topology import queues, retry_topics, subscriptions, topics
from metadata.brokers import (
    discovery,
    java_callers,
    registration,
    send_rate_limit,
    snapshot_acks,
)
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import leases
from metadata.errors import CatmqError, Unavailable
from metadata.groups import handling_traces
from metadata.limits.bulkhead import bulkhead
from metadata.membership import (
    expiry,
    granted_queues,
    heartbeats,
    java_beats,
    java_pulls,
    rebalance,
    rebalance_history,
)
from metadata.monitoring import metrics_history
from metadata.outages import AGAIN_S, Outage
from metadata.release import VERSION
from metadata.topics import producers

log = logging.getLogger(__name__)
Act = Callable[[], object]
AFTER_FAILURE_S = 0.05  # the least that the pause after failures begins with
MAX_PAUSE_S = 5.0
# a lease lasts so many pauses; when its holder dies another process goes on after that
LEASE_PASSES = 3
ROSTER_EVERY_S = 0.2  # between two looks at who came and went
EXPIRY_EVERY_S = 0.5  # with LEASE_PASSES: a dead sweeper is followed within about 2 s
PATIENCE_S = 3.0  # how long a wanted rebalance waits for whom it was given to


@dataclass(frozen=True, slots=True)
class Loop:
    """One repeated act: `run_once` makes a bounded pass about every `every_s` seconds,
    `finish` ends it.

    `jitter` is the part of the pause by which it varies.
    """

    name: str
    every_s: float
    run_once: Act
    finish: Act | None = None
    jitter: float = 0.2


@dataclass(frozen=True, slots=True)
class Each:
    """A loop for each of some things that come and go: `members` tells their ids, `loop`
    makes one's loop.

    The loop of one that is gone ends after the pass it is in.
    """

    name: str
    members: Callable[[], Collection[int]]
    loop: Callable[[int], Loop]


def loops(*, url: str = config.broker_url) -> list[Loop | Each]:
    """All loops of a worker, in the order in which they start; `url` is what clients are
    told of it.
    """
    overdue = OverdueRebalances()
    return [
        Loop(
            "metadata",
            metadata_loops.LOOK_EVERY_S,
            metadata_loops.look_at_metadata,
            bulkhead.end_checks,
        ),
        Loop("heartbeats", 0.0, heartbeats.serve, heartbeats.end_service),
        Loop("grants", 0.0, node_owners.claim_granted),
        Loop("snapshot", 0.0, metadata_loops.SnapshotLoop().follow),
        broker_loop(url),
        Loop("bell", head_watcher.APART_S, head_watcher.listen, jitter=0.0),
        Each("heads", head_watcher.nodes, heads_loop),
        Loop("metrics", 1.0, metrics.sample),
        Loop(
            "figures",
            group_metrics.REFRESH_S,
            group_metrics.board.refresh,
            group_metrics.board.leave,
        ),
        Loop("nodes", 5.0, registry.probe),
        Loop("series", 3.0, metrics_history.flush, metrics_history.flush),
        Loop(
            "traces", handling_traces.FLUSH_S, handling_traces.flush, handling_traces.flush
        ),
        Loop("producers", producers.FLUSH_S, producers.flush, producers.flush),
        Each("circuits", node_pools.used_node_ids, circuit_loop),
        Loop(
            "rates",
            send_rate_limit.EVERY_S,
            lambda: send_rate_limit.share_limits(name=process_name()),
        ),
        Loop("history", 2.0, rebalance_history.write_late_notes),
        leased("expiry", EXPIRY_EVERY_S, expiry.expire_silent_members),
        leased("rebalances", 1.0, overdue.run_once, first=overdue.look),
        leased("unfinished", 30.0, finish_creations),
        leased("partitions", 5.0, Ahead().run_once),
        Loop("shares", upkeep.EVERY_S, upkeep.run_once, upkeep.run_once),
        leased("lost leases", lost_leases.EVERY_S, lost_leases.sweep),
        leased("redrives", redrives.EVERY_S, redrives.Redriver().run_once),
        leased("disks", 5.0, DiskWatch().run_once),
        leased(
            "corruption",
            5.0,
            corruption_alarms.review,
            first=corruption_alarms.raise_alarms,
        ),
        Each("delays", delayed_delivery.nodes, delays_loop),
        *(java_loops() if config.java_networks else ()),
    ]


def java_loops() -> list[Loop]:
    """Loops that only Java clients need."""
    return [
        java_beats_loop(),
        Loop("java-callers", java_callers.FLUSH_S, java_callers.flush, java_callers.flush),
        Loop("java-pulls", java_pulls.FLUSH_S, java_pulls.flush),
        leased("java-starts", java_starts.EVERY_S, java_starts.JavaStarts().run_once),
    ]


def java_beats_loop() -> Loop:
    return Loop("java-beats", java_beats.FLUSH_S, java_beats.flush, java_beats.flush)


def leased(
    name: str,
    every_s: float,
    run_once: Callable[[], object],
    *,
    first: Callable[[], object] | None = None,
) -> Loop:
    """A loop whose passes are made by one process of all brokers; all of them run `first`
    in every pass.

    `first` runs before the lease is asked for, so it is what meets a metadata database that
    is away. Two at once would be harmless but wasteful. A process that stops gives its
    lease up, so the next one need not wait for its end.
    """
    lease = leases.LeaseHolder(
        name, f"{socket.gethostname()}:{os.getpid()}", ttl_s=LEASE_PASSES * every_s
    )

    def pass_if_leader() -> object:
        if first is not None:
            first()
        return run_once() if lease.acquire() else None

    return Loop(name, every_s, pass_if_leader, lease.release)


def heads_loop(node_id: int) -> Loop:
    watch = head_watcher.NodeWatcher(node_id, is_alone=is_alone)
    every_s = config.head_interval_ms / 1000
    return Loop(f"heads-{node_id}", every_s, watch.run_once, watch.leave, jitter=0.1)


def circuit_loop(node_id: int) -> Loop:
    """Look after the circuit of one node; a probe of a frozen one takes seconds."""
    return Loop(f"circuit-{node_id}", 0.25, lambda: node_pools.watch(node_id))


def delays_loop(node_id: int) -> Loop:
    """Move the due messages of one node; the mover has a lease of its own."""
    holder = f"{socket.gethostname()}:{os.getpid()}"
    mover = delayed_delivery.DelayedDelivery(node_id, holder=holder, is_alone=is_alone)
    return Loop(f"delays-{node_id}", delayed_delivery.EVERY_S, mover.run_once, mover.finish)


def is_alone() -> bool:
    """Return True if no other broker lives."""
    return discovery.is_alone(config.broker_name)


def process_name() -> str:
    return f"{config.broker_name}/{os.getpid()}"


def broker_loop(url: str) -> Loop:
    identity = registration.BrokerIdentity(
        config.broker_name, url, VERSION, master.INCARNATION
    )
    speaker = BrokerLoop(identity, snapshot_acks.SnapshotAck(process_name()))
    return Loop("broker", 0.8, speaker.run_once, speaker.finish)


@dataclass(slots=True)
class OverdueRebalances:
    """Runs the rebalances that nobody ran within PATIENCE_S: it works without a django-q
    worker.

    All processes look, so that whoever follows a dead one need not wait for as long again.
    """

    since: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        now = time.monotonic()
        self.since = {
            group: self.since.get(group, now) for group in rebalance.pending_groups()
        }

    def run_once(self) -> int:
        """The number of groups rebalanced in this pass, of those that the last look found."""
        now = time.monotonic()
        overdue = [
            group
            for group, first_seen in self.since.items()
            if now - first_seen >= PATIENCE_S
        ]
        return rebalance.rebalance_each(overdue, rebalance.rebalance_if_due)


def finish_creations() -> None:
    """Finish or removes what a crash left between metadata and tables. Raises what ended a
    sweep, after all others had their turn.
    """
    with ExitStack() as turns:  # the last one in is the first one run
        for sweep in (retry_topics.sweep, queues.sweep, subscriptions.sweep, topics.sweep):
            turns.callback(sweep)


class _FailureLog:
    """The log's lines on a loop's failures: of those that are expected a line at their
    begin and their end, of a bug the traceback, and while it stays the same a line a
    minute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outage = Outage(log, f"Loop {name}: a database")
        self._bug = ""
        self._told_at = 0.0
        self._count = 0

    def failed(self, error: Exception) -> None:
        if isinstance(error, Unavailable):
            self._outage.failed(error.detail)
            return
        now, bug = time.monotonic(), repr(error)
        self._count += 1
        if bug != self._bug:
            log.error("Loop %s failed", self._name, exc_info=error)
        elif now - self._told_at >= AGAIN_S:
            log.error(
                "Loop %s failed for the %dth time in a row: %s",
                self._name,
                self._count,
                bug,
            )
        else:
            return
        self._bug, self._told_at = bug, now

    def ended(self) -> None:
        self._outage.ended()
        if self._count:
            log.warning("Loop %s works again after %d failures", self._name, self._count)
        self._bug, self._count = "", 0


class _Running:
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
        loop, pause, failures = self._loop, 0.0, 0
        failure_log = _FailureLog(loop.name)
        # Jitter from the first pause on: workers that start together must not ask together.
        while not self._ends_within(
            pause * random.uniform(1 - loop.jitter, 1 + loop.jitter)
        ):
            try:
                loop.run_once()
            except Exception as error:  # noqa: BLE001 - a loop must live on: it tries again, and tells
                failures += 1
                failure_log.failed(error)
                close_old_connections()  # one that broke would fail for ever
            else:
                failures = 0
                failure_log.ended()
            least_s = max(loop.every_s, AFTER_FAILURE_S) if failures else loop.every_s
            pause = min(max(loop.every_s, MAX_PAUSE_S), least_s * 2 ** min(failures, 10))
        self._finish()

    def _ends_within(self, pause_s: float) -> bool:
        """Wait, but no longer than until somebody wakes the loop; whether it is to end."""
        self._wake.wait(pause_s)
        self._wake.clear()
        return self._ending.is_set()

    def _finish(self) -> None:
        try:
            if self._loop.finish is not None:
                self._loop.finish()
        except CatmqError as error:
            log.info("Loop %s ended early: %s", self._loop.name, error.detail)
        close_old_connections()


class Loops:
    def __init__(self, listed: Sequence[Loop | Each]) -> None:
        rosters = [self._roster(one) for one in listed if isinstance(one, Each)]
        self._listed = [one for one in listed if isinstance(one, Loop)]
        if rosters:
            self._listed.append(
                Loop("rosters", ROSTER_EVERY_S, lambda: [look() for look in rosters])
            )
        self._guard = threading.Lock()
        self._stopping = False
        self._running: dict[str, _Running] = {}

    def start(self) -> None:
        for loop in self._listed:
            self._start(loop)

    def wake(self, name: str) -> None:
        """End the pause of a loop: its next pass begins now. A signal handler may call it."""
        running = self._running.get(name)
        if running is not None:
            running.wake()

    def stop(self, *, limit_s: float = 5.0) -> None:
        """Ask all loops to end and wait for their last pass, together no longer than the
        limit.
        """
        with self._guard:
            self._stopping = True
            running = list(self._running.values())
            self._running = {}
        for one in running:
            one.end()
        # what passes wait for
        for wake in (board.wake_all, heartbeats.wake, granted_queues.wake, snapshot.wake):
            wake()
        end = time.monotonic() + limit_s
        for one in running:
            one.join(end - time.monotonic())

    def _start(self, loop: Loop) -> None:
        with self._guard:
            if not self._stopping and loop.name not in self._running:
                self._running[loop.name] = _Running(loop)

    def _end(self, name: str) -> None:
        with self._guard:
            running = self._running.pop(name, None)
        if running is not None:
            running.end()

    def _roster(self, each: Each) -> Callable[[], None]:
        """A look at those who come and go, which starts and ends their loops."""
        there: dict[int, Loop] = {}

        def look() -> None:
            members = set(each.members())
            for gone in there.keys() - members:
                self._end(there.pop(gone).name)
            for came in members - there.keys():
                there[came] = each.loop(came)
                self._start(there[came])

        return look
