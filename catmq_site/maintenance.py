"""Every loop that runs inside a broker process, and the only place where the server starts threads.

gunicorn starts the loops of a worker after the fork and stops them when the worker leaves. A loop is
(name, every, run_once): one bounded pass, then a pause. A pass that fails is logged and counted, and the
pause doubles up to MAX_PAUSE_S, so a database that is down is neither flooded with calls nor the log with
tracebacks. What runs every minute or more rarely is a schedule of django-q instead (jobs.py).
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

from brokerapi import draining, metrics
from brokerapi.views.about import VERSION
from catmq_site import master
from messagestore import (
    connections,
    failure_topics,
    moves,
    nodes,
    queues,
    redrives,
    remembered,
    subscriptions,
    suspect_alarms,
    topics,
    watcher,
)
from messagestore.disks import DiskWatch
from messagestore.heads import board
from messagestore.partitions import Ahead
from metadata import (
    acknowledgements,
    brokers,
    consumers,
    history,
    leases,
    rates,
    rebalance,
    series,
    snapshot,
)
from metadata.config import config
from metadata.errors import CatmqError, MetadataUnavailable

log = logging.getLogger(__name__)
Act = Callable[[], object]
MAX_PAUSE_S = 5.0
LEASE_PASSES = 3  # a lease lasts so many pauses; when its holder dies another process goes on after that
ROSTER_EVERY_S = 0.2  # between two looks at who came and went
EXPIRY_EVERY_S = 0.5  # with LEASE_PASSES: a dead sweeper is followed within about 2 s
COMPLAIN_EVERY_S = 60.0  # about a name that another broker has
PATIENCE_S = 3.0  # how long a wanted rebalance waits for whom it was given to


@dataclass(frozen=True, slots=True)
class Loop:
    """One repeated act: `run_once` makes a bounded pass about every `every_s` seconds, `finish` ends it.

    `jitter` is the part of the pause by which it varies.
    """

    name: str
    every_s: float
    run_once: Act
    finish: Act | None = None
    jitter: float = 0.2


@dataclass(frozen=True, slots=True)
class Each:
    """A loop for each of some things that come and go: `members` tells their ids, `loop` makes one's loop.

    The loop of one that is gone ends after the pass it is in.
    """

    name: str
    members: Callable[[], Collection[int]]
    loop: Callable[[int], Loop]


def loops(*, url: str = config.broker_url) -> list[Loop | Each]:
    """All loops of a worker, in the order in which they start; `url` is what clients are told of it."""
    overdue = OverdueRebalances()
    return [
        Loop("snapshot", config.snapshot_interval_ms / 1000, SnapshotLoop().run_once),
        broker_loop(url),
        Loop("bell", watcher.EVERY_S, watcher.listen),
        Each("heads", watcher.nodes, heads_loop),
        Loop("metrics", 1.0, metrics.sample),
        Loop("nodes", 5.0, nodes.probe),
        Loop("series", 3.0, series.flush, series.flush),
        Each("circuits", connections.in_use, circuit_loop),
        Loop("rates", 5.0, rates.count_processes),
        Loop("history", 2.0, history.catch_up),
        leased("expiry", EXPIRY_EVERY_S, consumers.expire, first=consumers.look),
        leased("rebalances", 1.0, overdue.run_once, first=overdue.look),
        leased("unfinished", 30.0, finish_creations),
        leased("partitions", 5.0, Ahead().run_once),
        leased("redrives", redrives.EVERY_S, redrives.Redriver().run_once),
        leased("disks", 5.0, DiskWatch().run_once),
        leased("suspects", 5.0, suspect_alarms.review, first=suspect_alarms.tell),
        Each("delays", moves.nodes, delays_loop),
    ]


def leased(
    name: str,
    every_s: float,
    run_once: Callable[[], object],
    *,
    first: Callable[[], object] | None = None,
) -> Loop:
    """A loop whose passes are made by one process of all brokers; all of them run `first` in every pass.

    `first` runs before the lease is asked for, so it is what meets a metadata database that is away.
    Two at once would be harmless but wasteful. A process that stops gives its lease up, so the next one need
    not wait for its end.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"

    def pass_if_leader() -> object:
        if first is not None:
            first()
        if leases.acquire(name=name, holder=holder, ttl_s=LEASE_PASSES * every_s):
            return run_once()
        return None

    return Loop(name, every_s, pass_if_leader, lambda: leases.release(name=name, holder=holder))


@dataclass(slots=True)
class SnapshotLoop:
    """Keeps the snapshot fresh, wakes the pulls of groups that changed and forgets queues that are gone."""

    seen: snapshot.Snapshot | None = None

    def run_once(self) -> None:
        """Loads what changed; a group whose generation, state or subscriptions moved is woken."""
        snapshot.refresh()
        before, self.seen = self.seen, snapshot.current()
        if before is None or before.version == self.seen.version:
            return
        for group_id in changed_groups(before, self.seen):
            board.wake_group(group_id)
        if before.queues.keys() - self.seen.queues.keys():
            remembered.keep(self.seen.queues)


def changed_groups(before: snapshot.Snapshot, after: snapshot.Snapshot) -> set[int]:
    """The groups that a waiting pull must hear of: themselves or a subscription of theirs changed."""
    groups = {one for one in before.groups if before.groups[one] != after.groups.get(one)}
    old, new = before.subscriptions, after.subscriptions
    moved = [old.get(one) or new[one] for one in {*old, *new} if old.get(one) != new.get(one)]
    return groups | {subscription.group_id for subscription in moved}


def heads_loop(node_id: int) -> Loop:
    """The watch over the heads of one node."""
    watch = watcher.NodeWatcher(node_id)
    every_s = config.head_interval_ms / 1000
    return Loop(f"heads-{node_id}", every_s, watch.run_once, watch.leave, jitter=0.1)


def circuit_loop(node_id: int) -> Loop:
    """Looks after the circuit of one node; a probe of a frozen one takes seconds."""
    return Loop(f"circuit-{node_id}", 0.25, lambda: connections.watch(node_id))


def delays_loop(node_id: int) -> Loop:
    """Moves the due messages of one node; the mover has a lease of its own."""
    mover = moves.NodeMover(node_id, holder=f"{socket.gethostname()}:{os.getpid()}")
    return Loop(f"delays-{node_id}", moves.EVERY_S, mover.run_once, mover.finish)


def broker_loop(url: str) -> Loop:
    """The loop that speaks with the registry for this broker."""
    life = brokers.Life(config.broker_name, url, VERSION, master.INCARNATION)
    speaker = BrokerLoop(life, acknowledgements.Voice(f"{config.broker_name}/{os.getpid()}"))
    return Loop("broker", 0.8, speaker.run_once, speaker.finish)


@dataclass(slots=True)
class BrokerLoop:
    """Keeps the broker's row fresh and the list of all brokers in memory; does what the row says.

    While metadata is away the last list stays, and the broker is in or out as it was.
    """

    life: brokers.Life
    voice: acknowledgements.Voice
    complained: str = ""
    complained_at: float = float("-inf")
    away: bool = False

    def run_once(self) -> None:
        """One heartbeat; a good-bye instead if the broker stops."""
        try:
            if draining.draining():
                brokers.stopped(life=self.life)
                return
            standing = brokers.heartbeat(life=self.life, held=master.registered())
            self._acknowledge()
        except MetadataUnavailable as error:
            if not self.away:
                log.warning("The registry of brokers does not answer: %s", error.detail)
            self.away = True
            return
        self.away = False
        self._follow(standing)

    def _acknowledge(self) -> None:
        """Tells up to which change this worker uses nothing older: who moves a node waits for that."""
        change = snapshot.current().version[1]
        if connections.follows():
            nodes.tell_heads()
            self.voice.acknowledge(life=self.life, change=change)

    def _follow(self, standing: brokers.Standing) -> None:
        if standing.registered:
            master.note_registered()
        if standing.state == "out":
            draining.pull_out()
        else:
            draining.pull_in()
        self._complain(standing.complaint)

    def _complain(self, complaint: str) -> None:
        now = time.monotonic()
        if complaint and (complaint != self.complained or now - self.complained_at > COMPLAIN_EVERY_S):
            log.error("This broker is not registered, so no client finds it: %s", complaint)
            self.complained_at = now
        self.complained = complaint

    def finish(self) -> None:
        """The good-bye, if there was none, and the end of the list that nobody keeps fresh now."""
        try:
            if draining.draining():
                brokers.stopped(life=self.life)
        finally:
            brokers.forget_picture()


@dataclass(slots=True)
class OverdueRebalances:
    """Runs the rebalances that nobody ran within PATIENCE_S: it works without a django-q worker.

    All processes look, so that whoever follows a dead one need not wait for as long again.
    """

    since: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """Notes since when groups wait."""
        now = time.monotonic()
        self.since = {group: self.since.get(group, now) for group in rebalance.pending()}

    def run_once(self) -> int:
        """The number of groups rebalanced in this pass, of those that the last look found."""
        now = time.monotonic()
        overdue = [group for group, first_seen in self.since.items() if now - first_seen >= PATIENCE_S]
        return rebalance.each(overdue, rebalance.settle)


def finish_creations() -> None:
    """Finishes or removes what a crash left between metadata and tables. Raises what ended a sweep, after
    all others had their turn.
    """
    with ExitStack() as turns:  # the last one in is the first one run
        for sweep in (failure_topics.sweep, queues.sweep, subscriptions.sweep, topics.sweep):
            turns.callback(sweep)


class _Running:
    """A loop in a thread of its own."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"loop-{loop.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ends the pause of the loop: its next pass begins now."""
        self._wake.set()

    def end(self) -> None:
        """Asks the loop to end after its pass."""
        self._ending.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Waits for the end."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            log.warning("%s is still in its last pass; it ends with the process", self._thread.name)

    def _run(self) -> None:
        loop, pause, failures = self._loop, 0.0, 0
        # Jitter from the first pause on: workers that start together must not ask together.
        while not self._ends_within(pause * random.uniform(1 - loop.jitter, 1 + loop.jitter)):
            try:
                loop.run_once()
            except Exception:  # a loop must live on; what it could not do now it tries again
                failures += 1
                log.exception("Loop %s failed, time %d in a row", loop.name, failures)
                close_old_connections()  # one that broke would fail for ever
            else:
                failures = 0
            pause = min(max(loop.every_s, MAX_PAUSE_S), loop.every_s * 2 ** min(failures, 10))
        self._finish()

    def _ends_within(self, pause_s: float) -> bool:
        """Waits, but no longer than until somebody wakes the loop; whether it is to end."""
        self._wake.wait(pause_s)
        self._wake.clear()
        return self._ending.is_set()

    def _finish(self) -> None:
        try:
            if self._loop.finish is not None:
                self._loop.finish()
        except CatmqError as error:
            log.info("Loop %s could not finish: %s", self._loop.name, error.detail)
        close_old_connections()


class Loops:
    """The running threads of one worker."""

    def __init__(self, listed: Sequence[Loop | Each]) -> None:
        self._listed = [self._roster(one) if isinstance(one, Each) else one for one in listed]
        self._guard = threading.Lock()
        self._stopping = False
        self._running: dict[str, _Running] = {}

    def start(self) -> None:
        """Starts a thread per loop."""
        for loop in self._listed:
            self._start(loop)

    def wake(self, name: str) -> None:
        """Ends the pause of a loop: its next pass begins now. A signal handler may call it."""
        running = self._running.get(name)
        if running is not None:
            running.wake()

    def stop(self, *, limit_s: float = 5.0) -> None:
        """Asks all loops to end and waits for their last pass, together no longer than the limit."""
        with self._guard:
            self._stopping = True
            running = list(self._running.values())
            self._running = {}
        for one in running:
            one.end()
        board.wake_all()  # the watchers wait on it
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

    def _roster(self, each: Each) -> Loop:
        """The loop that starts and ends the loops of those who come and go."""
        there: dict[int, Loop] = {}

        def run_once() -> None:
            members = set(each.members())
            for gone in there.keys() - members:
                self._end(there.pop(gone).name)
            for came in members - there.keys():
                there[came] = each.loop(came)
                self._start(there[came])

        return Loop(each.name, ROSTER_EVERY_S, run_once)
