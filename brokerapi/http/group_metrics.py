"""The metrics of groups and topics in `/metrics`. Every worker of a broker answers the same.

The worker that holds a lock reads the figures every REFRESH_S and writes them to a file in the
directory of prometheus_client. A scrape reads that file and queries no database. Every worker
counts the messages that groups pulled and handled, and writes the totals to a file of its own.
Without gunicorn the process keeps both in memory.

Gauges of prometheus_client would not do: the series of groups that are deleted or left out
must end, but its files keep each label for the life of the process.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from brokerapi.http import installation_metrics
from brokerapi.http.metric_families import gauge
from messagestore.inspect.node_counts import Figures, GroupFigures, Reader
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import MetadataUnavailable
from metadata.monitoring import group_counts, installation_counts, metrics_history
from metadata.monitoring.installation_counts import InstallationCounts

log = logging.getLogger(__name__)
REFRESH_S = 15.0
FIGURES, LOCK = "figures.json", "figures.lock"
T = TypeVar("T")
Totals = dict[int, tuple[int, int]]  # group → messages it pulled, and messages it handled


class FiguresSnapshot(msgspec.Struct):
    """Figures of the nodes and of metadata, and when each was read, by the monotonic clock
    that all workers share.

    `members` and `dead`: number of members and of dead letters, by group id. They and
    `installation` are None until metadata has answered once. `generations` is by group id.
    """

    figures: Figures
    read_at: float
    members: dict[int, int] | None = None
    dead: dict[int, int] | None = None
    metadata_read_at: float | None = None
    installation: InstallationCounts | None = None
    generations: dict[int, int] = {}


_FIGURES = msgspec.json.Decoder(FiguresSnapshot)
_TOTALS = msgspec.json.Decoder(Totals)


class Board:
    """The figures of a broker, which its processes share through files in `directory`.

    `directory`: only the processes of this broker use it. None: the broker has one process,
    which keeps the figures in memory.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._reader = Reader()
        self._lock: Any = None
        self._last_snapshot: FiguresSnapshot | None = None
        self._file_version: tuple[int, int] | None = (
            None  # (inode, mtime) of the file read last
        )
        self._totals: Totals = {}
        self._publishing = Lock()

    @cached_property
    def _totals_file(self) -> str:
        # Computed at the first use, because the process forks after the board is created. With
        # the time, because process ids are used again, and the totals of an ended process
        # still count.
        return f"totals_{os.getpid()}_{time.monotonic_ns()}.json"

    def refresh(self) -> bool:
        """Read and write the figures if this process holds the lock. Return True if it does.

        Raises MetadataUnavailable before there is a snapshot. Later, while metadata is
        unavailable, its last figures stay.
        """
        if not self._is_leader():
            return False
        figures = self._reader.read(most=config.metrics_groups)
        generations = {
            group.id: group.generation for group in snapshot.current().groups.values()
        }
        new = FiguresSnapshot(figures, time.monotonic(), generations=generations)
        try:
            new.members, new.dead = group_counts.read()
            new.installation = installation_counts.read()
            new.metadata_read_at = time.monotonic()
        except MetadataUnavailable as error:
            log.info("Figures of metadata were not refreshed: %s", error.detail)
            if (earlier := self.last_snapshot()) is not None:
                new.members, new.dead = earlier.members, earlier.dead
                new.installation = earlier.installation
                new.metadata_read_at = earlier.metadata_read_at
        self._last_snapshot = new
        self._write(FIGURES, msgspec.json.encode(new))
        return True

    def leave(self) -> None:
        """Let another process of the broker read the figures."""
        if self._lock is not None:
            # Closing the file releases the lock.
            self._lock.close()
            self._lock = None

    def publish(self, count: Callable[[], Totals]) -> None:
        """Write the totals that `count` returns to this worker's file, if they changed.

        The worker's loop and each scrape call this, in threads of their own. The lock keeps
        them from writing the same draft at once, and from replacing newer totals by older
        ones.
        """
        with self._publishing:
            totals = dict(count())
            if totals != self._totals:
                self._write(self._totals_file, msgspec.json.encode(totals))
                self._totals = totals

    def last_snapshot(self) -> FiguresSnapshot | None:
        """Return the last figures, None before there are any."""
        if self._directory is None:
            return self._last_snapshot
        path = self._directory / FIGURES
        with suppress(OSError):
            stat = path.stat()
            version = stat.st_ino, stat.st_mtime_ns
            # Decoded only when it has changed, because every scrape calls this.
            if version != self._file_version:
                if (figures := _decode_file(_FIGURES, path)) is not None:
                    self._last_snapshot = figures
                self._file_version = version
        return self._last_snapshot

    def totals(self) -> Totals:
        """Return how many messages groups pulled and handled through all workers of the
        broker, including ended workers.
        """
        if self._directory is None:
            return self._totals
        sums: Totals = {}
        for path in self._directory.glob("totals_*.json"):
            for group_id, (pulled, handled) in (_decode_file(_TOTALS, path) or {}).items():
                earlier = sums.get(group_id, (0, 0))
                sums[group_id] = earlier[0] + pulled, earlier[1] + handled
        return sums

    def _is_leader(self) -> bool:
        """Return True if this process holds the lock, or gets it now."""
        if self._directory is None or self._lock is not None:
            return True
        lock = open(self._directory / LOCK, "ab")  # noqa: SIM115 - held as long as the process lives
        try:
            # The kernel releases the lock when the process ends, so no leader can be lost.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def _write(self, name: str, text: bytes) -> None:
        if self._directory is not None:
            # Replaced atomically, because other processes read the file. The name of the draft
            # has the process id, so that no two processes write the same draft.
            draft = self._directory / f"{name}.{os.getpid()}"
            draft.write_bytes(text)
            os.replace(draft, self._directory / name)


def _decode_file(decoder: msgspec.json.Decoder[T], path: Path) -> T | None:
    """Return the content of a worker's file. None if it is damaged or missing: the files of
    the other workers still count.
    """
    try:
        return decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s is left out of /metrics: %s", path, error)
        return None


def _directory() -> Path | None:
    path = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(path) if path else None


board = Board(_directory())


def sample() -> None:
    """Publish the totals of this worker, without deleted groups. Called by a loop of every
    worker.
    """
    with suppress(MetadataUnavailable):
        metrics_history.evict_groups(snapshot.current().groups.keys())
    board.publish(metrics_history.group_totals)


class GroupCollector:
    """The metrics of groups and topics, built for each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield from installation_metrics.broker_families()
        latest = board.last_snapshot()
        if latest is not None:
            yield from metric_families(latest, board.totals())


def metric_families(latest: FiguresSnapshot, totals: Totals) -> Iterator[Metric]:
    yield from _group_gauges(latest)
    yield from _counters(latest, totals)
    figures = latest.figures
    yield gauge(
        "catmq_topic_log_end_offset",
        "The offset that the next message of a queue gets.",
        ("topic", "queue"),
        (
            ((topic, str(queue)), head)
            for topic, heads in figures.topics
            for queue, head in heads
        ),
    )
    text = "Groups that are not named here, those least behind."
    yield GaugeMetricFamily("catmq_groups_left_out", text, value=figures.groups_left_out)
    text = "Topics that are not named here, those with the fewest messages."
    yield GaugeMetricFamily("catmq_topics_left_out", text, value=figures.topics_left_out)
    now = time.monotonic()
    # Infinite, not absent, before the first answer: an alert on the age must fire then, too.
    metadata_age_s = (
        math.inf if latest.metadata_read_at is None else now - latest.metadata_read_at
    )
    yield gauge(
        "catmq_group_figures_age_seconds",
        "How old the figures of groups and topics are: those read from nodes, and from metadata.",
        ("source",),
        ((("nodes",), now - latest.read_at), (("metadata",), metadata_age_s)),
    )
    yield from installation_metrics.node_families(figures.delayed_late_s)
    if latest.installation is not None:
        yield from installation_metrics.metadata_families(
            latest.installation, age_s=metadata_age_s
        )


def _group_gauges(latest: FiguresSnapshot) -> Iterator[Metric]:
    groups, members, dead = latest.figures.groups, latest.members, latest.dead
    yield gauge(
        "catmq_group_lag_messages",
        "Unread messages of a group in a topic.",
        ("group", "topic"),
        (((group.name, lag.topic), lag.messages) for group in groups for lag in group.lags),
    )
    yield gauge(
        "catmq_group_lag_seconds",
        "Age of the oldest unread message; 0 if none is.",
        ("group", "topic"),
        (((group.name, lag.topic), lag.seconds) for group in groups for lag in group.lags),
    )
    yield _gauge_by_group(
        "catmq_group_retries_pending",
        "Failed messages that are still to be tried again.",
        groups,
        lambda group: group.retries,
    )
    yield _gauge_by_group(
        "catmq_group_members",
        "Members of a group.",
        groups,
        lambda group: None if members is None else members.get(group.id, 0),
    )
    yield _gauge_by_group(
        "catmq_group_dead_letters",
        "Dead messages of a group, as a job counted them last.",
        groups,
        lambda group: None if dead is None else dead.get(group.id, 0),
    )
    yield _gauge_by_group(
        "catmq_group_generation",
        "Number of the last rebalance of a group.",
        groups,
        lambda group: latest.generations.get(group.id),
    )


def _gauge_by_group(
    name: str,
    text: str,
    groups: Iterable[GroupFigures],
    value: Callable[[GroupFigures], float | None],
) -> Metric:
    return gauge(
        name, text, ("group",), (((group.name,), value(group)) for group in groups)
    )


def _counters(latest: FiguresSnapshot, totals: Totals) -> Iterator[Metric]:
    """Yield counters of the messages that went through this broker since it started."""
    pulled = CounterMetricFamily(
        "catmq_group_messages_pulled",
        "Messages of a topic answered to pulls of a group.",
        labels=("group",),
    )
    handled = CounterMetricFamily(
        "catmq_group_messages_handled",
        "Messages that commits of a group moved past.",
        labels=("group",),
    )
    for group in latest.figures.groups:
        counts = totals.get(group.id, (0, 0))
        pulled.add_metric((group.name,), counts[0])
        handled.add_metric((group.name,), counts[1])
    yield from (pulled, handled)
