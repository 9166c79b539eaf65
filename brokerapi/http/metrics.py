"""Metrics that `/metrics` shows, right across worker processes.

With PROMETHEUS_MULTIPROC_DIR set (gunicorn's configuration does) every process writes its
values to files there and whichever answers adds them up; its `child_exit` drops the gauges
of a dead one. No label of these may take values that clients choose: routes are patterns, a
made-up method is "other". Groups and topics, of which there may be many, are in
group_metrics.py.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import Metric

from brokerapi.http import group_metrics
from messagestore.consume.positions import Committed
from messagestore.consume.pull_types import PulledQueue
from messagestore.engine.messages import ROW_BODY
from messagestore.heads import corruption
from messagestore.heads.heads import board
from messagestore.nodes import registry
from messagestore.produce.publish import Run
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import ReportOutcome
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.errors import CatmqError, Code
from metadata.monitoring import metrics_history
from metadata.topics import producers

# They would be a second line per counter that nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

log = logging.getLogger(__name__)
# others count as "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

REQUESTS = Counter("catmq_requests", "Requests answered.", ["method", "route", "status"])
REPEATED = Counter(
    "catmq_requests_repeated", "Those that got the answer before again, without a thread."
)
ERRORS = Counter(
    "catmq_errors", "Errors answered, those of single messages included.", ["code"]
)
SENT = Counter("catmq_messages_sent", "Messages stored by sends.")
PULLED = Counter("catmq_messages_pulled", "Messages answered to pulls.")
PULLS = Counter("catmq_pulls", "Pulls answered.")
FAILURES = Counter(
    "catmq_failures", "Failed messages stored for a retry, or with the dead.", ["fate"]
)
COMMITTED = Counter("catmq_commits", "Queue positions committed.")
WAITERS = Gauge("catmq_waiters", "Pulls that wait now.", multiprocess_mode="livesum")
SNAPSHOT_AGE = Gauge(
    "catmq_snapshot_age_seconds",
    "Age of the oldest snapshot of metadata in a worker.",
    multiprocess_mode="livemax",
)
CORRUPT_QUEUES = Gauge(
    "catmq_corrupt_queues",
    "Queues that contradict themselves, as one worker knows, the most; its log and /readyz "
    "name them.",
    multiprocess_mode="livemax",
)
NODE_SECONDS = Gauge(
    "catmq_node_seconds",
    "Time of the last probe of a node; +Inf when it did not answer.",
    ["node"],
    multiprocess_mode="livemax",
)


def count_request(request: HttpRequest, response: HttpResponse) -> None:
    """Counts an answered request, and its error if it is one."""
    match = request.resolver_match
    method = request.method if request.method in METHODS else "other"
    REQUESTS.labels(method, match.route if match else "", response.status_code).inc()
    code = getattr(response, "catmq_code", None)
    if code is not None:
        count_error(code)


def count_again(method: str, route: str) -> None:
    """Counts a request that got the answer of the one before again."""
    REQUESTS.labels(method, route, 200).inc()
    REPEATED.inc()


def count_error(code: Code, count: int = 1) -> None:
    """Counts an error that a client was told, once or of so many messages."""
    ERRORS.labels(code.value).inc(count)


class Sender(NamedTuple):
    """A client that sent messages: its API key, its address, and its name and version."""

    actor: Actor
    address: str
    sdk: str


def count_sent(topic: str, runs: Sequence[Run], *, bytes: int, sender: Sender) -> None:
    """Counts the messages of a send to a topic, and the errors of those that were refused."""
    stored = refused = 0
    for run in runs:
        if isinstance(run.fate, CatmqError):
            refused += run.length
            count_error(run.fate.code, run.length)
        else:
            stored += run.length
    SENT.inc(stored)
    known = snapshot.current().topic(topic)
    if known is not None:
        metrics_history.count_sent(
            topic_id=known.id, messages=stored, bytes=bytes if stored else 0, errors=refused
        )
        if stored:
            producers.count_sent(topic_id=known.id, messages=stored, **sender._asdict())


def count_pulled(group_id: int, queues: Iterable[PulledQueue | Leased]) -> None:
    """Counts the messages of a pull, by topic."""
    known = snapshot.current().queues
    total = 0
    for queue in queues:
        if queue.rows:
            total += len(queue.rows)
            info = known.get(queue.queue)
            if info is not None:
                weight = sum(
                    [len(row[ROW_BODY]) for row in queue.rows if row[ROW_BODY] is not None]
                )
                metrics_history.count_pulled(
                    topic_id=info.topic_id,
                    group_id=group_id,
                    messages=len(queue.rows),
                    bytes=weight,
                )
    PULLS.inc()
    PULLED.inc(total)


def count_committed(group_id: int, committed: Iterable[Committed | ReportOutcome]) -> None:
    """Counts the positions of a commit, and by topic what it moved them past."""
    known = snapshot.current().queues
    positions = 0
    for one in committed:
        positions += one.state == "ok"
        info = known.get(one.queue) if one.handled else None
        if info is not None:
            metrics_history.count_handled(
                topic_id=info.topic_id, group_id=group_id, messages=one.handled
            )
    COMMITTED.inc(positions)


def sample() -> None:
    """Takes the values that are states and not events; a loop of every worker, once a
    second or so.
    """
    WAITERS.set(board.waiters())
    CORRUPT_QUEUES.set(len(corruption.current()))
    SNAPSHOT_AGE.set(snapshot.age_s())
    group_metrics.sample()
    if math.isinf(snapshot.age_s()):
        return  # no snapshot yet, so no node is known
    for name, seconds in registry.latencies().items():
        NODE_SECONDS.labels(name).set(math.inf if seconds is None else seconds)


class WorkerFiles:
    """Collector of the metrics that worker processes write to their files in `directory`.

    Unlike the collector of prometheus_client, it leaves out a file that cannot be read.
    prometheus_client creates a file empty and writes its header later. A scrape between
    these two steps would fail, and all scrapes would fail after a worker was killed between
    them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all workers, added up."""
        files = [str(path) for path in self._directory.glob("*.db")]
        try:
            return _merge_files(files)
        except Exception:  # noqa: BLE001  struct.error, RuntimeError …: whatever the bytes lead to
            readable = [file for file in files if _is_readable(file)]
        # A file that could be read stays readable: its worker only adds to it.
        return _merge_files(readable)


def _merge_files(files: Sequence[str]) -> Iterable[Metric]:
    return multiprocess.MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call,no-any-return]


def _is_readable(file: str) -> bool:
    """Return False if a worker has not written the header of its file, or the file is
    damaged.
    """
    try:
        _merge_files([file])
    except Exception as error:  # noqa: BLE001
        log.info("%s is left out of /metrics: %r", file, error)
        return False
    return True


def exposition() -> tuple[bytes, str]:
    """(text, content type) of all processes' values."""
    sample()
    collectors, groups = REGISTRY, CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        collectors = CollectorRegistry()
        collectors.register(WorkerFiles(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])))
    group_metrics.GroupCollector(groups)
    return generate_latest(collectors) + generate_latest(groups), CONTENT_TYPE_LATEST
