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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import close_old_connections

from brokerapi import draining, metrics
from brokerapi.views.about import VERSION
from catmq_site import master
from messagestore import connections, moves, nodes, queues, subscriptions, topics, watcher
from messagestore.disks import DiskWatch
from messagestore.heads import board
from messagestore.partitions import Ahead
from metadata import acknowledgements, brokers, consumers, history, leases, rebalance, snapshot
from metadata.config import config
from metadata.errors import CatmqError, MetadataUnavailable

log = logging.getLogger(__name__)
Act = Callable[[], object]
MAX_PAUSE_S = 5.0
LEASE_PASSES = 3  # a lease lasts so many pauses; when its holder dies another process goes on after that
EXPIRY_EVERY_S = 0.5  # with LEASE_PASSES: a dead sweeper is followed within about 2 s
COMPLAIN_EVERY_S = 60.0  # about a name that another broker has
PATIENCE_S = 3.0  # how long a wanted rebalance waits for whom it was given to


@dataclass(frozen=True, slots=True)
class Loop:
    """One repeated act: `run_once` makes a bounded pass about every `every_s` seconds, `finish` ends it."""

    name: str
    every_s: float
    run_once: Act
    finish: Act | None = None


def loops(*, url: str = config.broker_url) -> list[Loop]:
    """All loops of a worker, in the order in which they start; `url` is what clients are told of it."""
    overdue = OverdueRebalances()
    return [
        Loop("snapshot", config.snapshot_interval_ms / 1000, SnapshotLoop().run_once),
        broker_loop(url),
        Loop("heads", watcher.EVERY_S, watcher.watcher.run_once),
        Loop("metrics", 1.0, metrics.sample),
        Loop("nodes", 5.0, nodes.probe),
        Loop("circuits", 0.25, connections.watch),
        Loop("history", 2.0, history.catch_up),
        leased("expiry", EXPIRY_EVERY_S, consumers.expire, first=consumers.look),
        leased("rebalances", 1.0, overdue.run_once, first=overdue.look),
        leased("unfinished", 30.0, finish_creations),
        leased("partitions", 5.0, Ahead().run_once),
        leased("disks", 5.0, DiskWatch().run_once),
        delays_loop(),
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
    """Keeps the snapshot fresh and wakes the pulls of groups that changed."""

    seen: snapshot.Snapshot | None = None

    def run_once(self) -> None:
        """Loads what changed; a group whose generation, state or subscriptions moved is woken."""
        snapshot.refresh()
        before, self.seen = self.seen, snapshot.current()
        if before is None or before.version == self.seen.version:
            return
        for group_id in changed_groups(before, self.seen):
            board.wake_group(group_id)


def changed_groups(before: snapshot.Snapshot, after: snapshot.Snapshot) -> set[int]:
    """The groups that a waiting pull must hear of: themselves or a subscription of theirs changed."""
    groups = {one for one in before.groups if before.groups[one] != after.groups.get(one)}
    old, new = before.subscriptions, after.subscriptions
    moved = [old.get(one) or new[one] for one in {*old, *new} if old.get(one) != new.get(one)]
    return groups | {subscription.group_id for subscription in moved}


def delays_loop() -> Loop:
    """Moves what is due, on every node in turn; each node has its own lease and its own circuit."""
    movers = Movers(f"{socket.gethostname()}:{os.getpid()}")
    return Loop("delays", moves.EVERY_S, movers.run_once, movers.finish)


@dataclass(slots=True)
class Movers:
    """The movers of all nodes; one that fails does not hold up the others."""

    holder: str
    movers: dict[int, moves.NodeMover] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)

    def run_once(self) -> int:
        """A pass over all nodes; how many messages left the tables of delayed ones."""
        wanted = moves.nodes()
        self.movers = {
            one: self.movers.get(one) or moves.NodeMover(one, holder=self.holder) for one in wanted
        }
        return sum(self._pass(node_id, mover) for node_id, mover in self.movers.items())

    def _pass(self, node_id: int, mover: moves.NodeMover) -> int:
        try:
            moved = mover.run_once()
        except CatmqError as error:
            if node_id not in self.failing:
                log.warning("Due messages of node %d are moved later: %s", node_id, error.detail)
            self.failing.add(node_id)
            return 0
        self.failing.discard(node_id)
        return moved

    def finish(self) -> None:
        """Lets other processes go on at once."""
        for mover in self.movers.values():
            mover.finish()


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
    """Finishes or removes what a crash left between metadata and tables."""
    topics.sweep()
    subscriptions.sweep()
    queues.sweep()


class Loops:
    """The running threads of one worker."""

    def __init__(self, listed: Sequence[Loop]) -> None:
        self._listed = listed
        self._stopping = threading.Event()
        self._wakes = {loop.name: threading.Event() for loop in listed}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts a thread per loop."""
        for loop in self._listed:
            thread = threading.Thread(target=self._run, args=(loop,), name=f"loop-{loop.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wake(self, name: str) -> None:
        """Ends the pause of a loop: its next pass begins now. A signal handler may call it."""
        self._wakes[name].set()

    def stop(self, *, limit_s: float = 5.0) -> None:
        """Asks all loops to end and waits for their last pass, together no longer than the limit."""
        self._stopping.set()
        for wake in self._wakes.values():
            wake.set()
        end = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                log.warning("%s is still in its last pass; it ends with the process", thread.name)
        self._threads.clear()

    def _run(self, loop: Loop) -> None:
        pause, failures = 0.0, 0
        # Jitter from the first pause on: workers that start together must not ask together.
        while not self._stops_within(loop, pause * random.uniform(0.8, 1.2)):
            try:
                loop.run_once()
            except Exception:  # a loop must live on; what it could not do now it tries again
                failures += 1
                log.exception("Loop %s failed, time %d in a row", loop.name, failures)
                close_old_connections()  # one that broke would fail for ever
            else:
                failures = 0
            pause = min(max(loop.every_s, MAX_PAUSE_S), loop.every_s * 2 ** min(failures, 10))
        self._finish(loop)

    def _stops_within(self, loop: Loop, pause_s: float) -> bool:
        """Waits, but no longer than until somebody wakes the loop; whether it is to end."""
        wake = self._wakes[loop.name]
        wake.wait(pause_s)
        wake.clear()
        return self._stopping.is_set()

    def _finish(self, loop: Loop) -> None:
        try:
            if loop.finish is not None:
                loop.finish()
        except CatmqError as error:
            log.info("Loop %s could not finish: %s", loop.name, error.detail)
        close_old_connections()
