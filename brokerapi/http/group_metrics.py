"""The figures of `/metrics` on groups and topics, the same whichever worker of the broker
answers.

One worker of a broker, the one that holds a lock, reads the figures every REFRESH_S and
writes them to a file beside the counters of prometheus_client; a scrape reads that file and
asks no database. What groups pulled and handled each worker counts for itself, and writes
to a file of its own. Without gunicorn the process keeps both in memory. Series of groups
that are left out, or gone, end: so these are no gauges of prometheus_client, whose files
keep each label for ever.
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

from messagestore.inspect.node_counts import Figures, GroupFigures, Reader
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import MetadataUnavailable
from metadata.monitoring import group_counts, metrics_history

log = logging.getLogger(__name__)
REFRESH_S = 15.0
FIGURES, LOCK = "figures.json", "figures.lock"
T = TypeVar("T")
Totals = dict[int, tuple[int, int]]  # group → messages it pulled, and messages it handled


class FiguresSnapshot(msgspec.Struct):
    """Figures of the nodes and of metadata, and when each was read, by a clock that all
    workers share.

    `members`, `dead`: None while metadata never answered.
    """

    figures: Figures
    read_at: float
    members: dict[int, int] | None = None
    dead: dict[int, int] | None = None
    metadata_read_at: float | None = None


_FIGURES = msgspec.json.Decoder(FiguresSnapshot)
_TOTALS = msgspec.json.Decoder(Totals)


class Board:
    """The figures of a broker as one of its processes writes and reads them; `directory` is
    theirs alone.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._reader = Reader()
        self._lock: Any = None
        self._told: FiguresSnapshot | None = None
        self._read_of: tuple[int, int] | None = None  # which file was read last
        self._totals: Totals = {}
        self._publishing = Lock()

    @cached_property
    def _own(self) -> str:
        """Name of the file of this process, which has forked after it made the board."""
        return f"totals_{os.getpid()}_{time.monotonic_ns()}.json"

    def refresh(self) -> bool:
        """Reads the figures anew, if this process is the one of its broker that does;
        whether it is.

        Raises MetadataUnavailable before there is a snapshot; later those of the nodes go
        on without it.
        """
        if not self._leads():
            return False
        figures = self._reader.read(most=config.metrics_groups)
        told = FiguresSnapshot(figures, time.monotonic())
        try:
            told.members, told.dead = group_counts.read()
            told.metadata_read_at = time.monotonic()
        except MetadataUnavailable as error:
            log.info("Members and dead letters were not refreshed: %s", error.detail)
            if (known := self.told()) is not None:
                told.members, told.dead = known.members, known.dead
                told.metadata_read_at = known.metadata_read_at
        self._told = told
        self._write(FIGURES, msgspec.json.encode(told))
        return True

    def leave(self) -> None:
        """Lets another process read the figures."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def publish(self, count: Callable[[], Totals]) -> None:
        """Write what groups pulled and handled through this worker to its file, if `count`
        returns news.

        The worker's loop and each scrape call this, in threads of their own. Under the
        lock, they share the draft, and older totals never replace newer ones.
        """
        with self._publishing:
            totals = dict(count())
            if totals != self._totals:
                self._write(self._own, msgspec.json.encode(totals))
                self._totals = totals

    def told(self) -> FiguresSnapshot | None:
        """The last figures; None before there are any."""
        if self._directory is None:
            return self._told
        path = self._directory / FIGURES
        with suppress(OSError):
            found = path.stat()
            which = found.st_ino, found.st_mtime_ns
            if which != self._read_of:
                if (figures := _decoded(_FIGURES, path)) is not None:
                    self._told = figures
                self._read_of = which
        return self._told

    def totals(self) -> Totals:
        """Return what groups pulled and handled through all workers of the broker, ended
        ones included.
        """
        if self._directory is None:
            return self._totals
        sums: Totals = {}
        for path in self._directory.glob("totals_*.json"):
            for group_id, (pulled, handled) in (_decoded(_TOTALS, path) or {}).items():
                before = sums.get(group_id, (0, 0))
                sums[group_id] = before[0] + pulled, before[1] + handled
        return sums

    def _leads(self) -> bool:
        """Return True if this process holds the lock, which goes to another one at its end."""
        if self._directory is None or self._lock is not None:
            return True
        lock = open(self._directory / LOCK, "ab")  # noqa: SIM115 - held as long as the process lives
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def _write(self, name: str, text: bytes) -> None:
        """At once or not at all, as others read it."""
        if self._directory is not None:
            draft = self._directory / f"{name}.{os.getpid()}"
            draft.write_bytes(text)
            os.replace(draft, self._directory / name)


def _decoded(decoder: msgspec.json.Decoder[T], path: Path) -> T | None:
    """Return what a worker wrote to its file. None if the file is damaged or gone: the
    others still count.
    """
    try:
        return decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s is left out of /metrics: %s", path, error)
        return None


def _directory() -> Path | None:
    named = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(named) if named else None


board = Board(_directory())


def sample() -> None:
    """Tells the other workers what this one counted; a loop of every worker."""
    with suppress(MetadataUnavailable):
        metrics_history.evict_groups(snapshot.current().groups.keys())
    board.publish(metrics_history.group_totals)


class GroupCollector:
    """The metrics of groups and topics, made anew for each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's collectors."""
        told = board.told()
        if told is not None:
            yield from metric_families(told, board.totals())


def metric_families(told: FiguresSnapshot, totals: Totals) -> Iterator[Metric]:
    """All metrics of groups and topics."""
    yield from _of_groups(told)
    yield from _counters(told, totals)
    yield _log_ends(told.figures)
    yield from _left_out(told.figures)
    yield _ages(told)


def _left_out(figures: Figures) -> Iterator[Metric]:
    text = "Groups that are not named here, those least behind."
    yield GaugeMetricFamily("catmq_groups_left_out", text, value=figures.groups_left_out)
    text = "Topics that are not named here, those with the fewest messages."
    yield GaugeMetricFamily("catmq_topics_left_out", text, value=figures.topics_left_out)


Rows = Iterable[tuple[Any, float | None]]


def _of_groups(told: FiguresSnapshot) -> Iterator[Metric]:
    """Gauges that every broker tells alike."""
    groups, members, dead = told.figures.groups, told.members, told.dead
    yield _gauge(
        "catmq_group_lag_messages", "Unread messages of a group in a topic.", ("group", "topic"),
        (((group.name, lag.topic), lag.messages) for group in groups for lag in group.lags),
    )  # fmt: skip
    yield _gauge(
        "catmq_group_lag_seconds", "Age of the oldest unread message; 0 if none "
                                   "is.", ("group", "topic"),
        (((group.name, lag.topic), lag.seconds) for group in groups for lag in group.lags),
    )  # fmt: skip
    yield _by_group("catmq_group_retries_pending", "Failed messages that are still to be "
                                                   "tried again.",
                    groups, lambda one: one.retries)  # fmt: skip
    yield _by_group("catmq_group_members", "Members of a group.",
                    groups, lambda one: None if members is None else members.get(one.id,
                    0))  # fmt: skip
    yield _by_group("catmq_group_dead_letters", "Dead messages of a group, as a job "
                                                "counted them last.",
                    groups, lambda one: None if dead is None else dead.get(one.id, 0))  # fmt: skip


def _by_group(
    name: str,
    text: str,
    groups: Iterable[GroupFigures],
    value: Callable[[GroupFigures], float | None],
) -> Metric:
    return _gauge(
        name, text, ("group",), (((group.name,), value(group)) for group in groups)
    )


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    """Return what is not known has no sample."""
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        if value is not None:
            metric.add_metric(values, value)
    return metric


def _counters(told: FiguresSnapshot, totals: Totals) -> Iterator[Metric]:
    """Return what went through this broker since it began; each tells its own part."""
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
    for group in told.figures.groups:
        counts = totals.get(group.id, (0, 0))
        pulled.add_metric((group.name,), counts[0])
        handled.add_metric((group.name,), counts[1])
    yield from (pulled, handled)


def _log_ends(figures: Figures) -> Metric:
    rows = (
        ((topic, str(queue)), head)
        for topic, ends in figures.topics
        for queue, head in ends
    )
    text = "The offset that the next message of a queue gets."
    return _gauge("catmq_topic_log_end_offset", text, ("topic", "queue"), rows)


def _ages(told: FiguresSnapshot) -> Metric:
    now = time.monotonic()
    of_metadata = math.inf if told.metadata_read_at is None else now - told.metadata_read_at
    rows = ((("nodes",), now - told.read_at), (("metadata",), of_metadata))
    text = "How old the figures of groups and topics are: those read from nodes, and from metadata."
    return _gauge("catmq_group_figures_age_seconds", text, ("source",), rows)
