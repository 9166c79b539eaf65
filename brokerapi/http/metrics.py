"""Metrics of `/metrics`, summed over worker processes.

With PROMETHEUS_MULTIPROC_DIR set (gunicorn's configuration does) every process writes its
values to files there, and the process that answers a scrape adds them up. Its `child_exit`
drops the gauges of a dead process. No label may take values that clients choose: routes are
patterns, an invented method is "other". Groups and topics, of which there may be many, are
in group_metrics.py.
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
    Histogram,
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
from messagestore.produce.publish import FateRun
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import ReportOutcome
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.errors import CatmqError, Code
from metadata.monitoring import metrics_history
from metadata.topics import producers

# The _created series would double the number of lines, and nothing reads them.
disable_created_metrics()  # type: ignore[no-untyped-call]

log = logging.getLogger(__name__)
# Other methods, which clients may invent, count as "other".
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

REQUESTS = Counter("catmq_requests", "Requests answered.", ["method", "route", "status"])
REPEATED = Counter(
    "catmq_requests_repeated", "Those that got the answer before again, without a thread."
)
ERRORS = Counter(
    "catmq_errors", "Errors answered, those of single messages included.", ["code"]
)
SENT = Counter("catmq_messages_sent", "Messages stored by sends.")
SEND_SECONDS = Histogram(
    "catmq_send_seconds",
    "Time that a broker needs to store the messages of a send.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
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
    # The route, not the path: a label must not take values that clients choose.
    match = request.resolver_match
    method = request.method if request.method in METHODS else "other"
    REQUESTS.labels(method, match.route if match else "", response.status_code).inc()
    code = getattr(response, "catmq_code", None)
    if code is not None:
        count_error(code)


def count_again(method: str, route: str) -> None:
    REQUESTS.labels(method, route, 200).inc()
    REPEATED.inc()


def count_error(code: Code, count: int = 1) -> None:
    """Count errors that were answered, or errors of single messages."""
    ERRORS.labels(code.value).inc(count)


class Sender(NamedTuple):
    """A client that sent messages: its API key, its address, its name and version."""

    actor: Actor
    address: str
    sdk: str


def count_sent(topic: str, runs: Sequence[FateRun], *, bytes: int, sender: Sender) -> None:
    """Count the stored messages of a send, and the errors of the refused messages."""
    stored = refused = 0
    for run in runs:
        if isinstance(run.fate, CatmqError):
            refused += run.length
            count_error(run.fate.code, run.length)
        else:
            stored += run.length
    SENT.inc(stored)
    info = snapshot.current().topic(topic)
    if info is not None:
        metrics_history.count_sent(
            topic_id=info.id, messages=stored, bytes=bytes if stored else 0, errors=refused
        )
        # A producer is listed once it has stored something, not for refused messages.
        if stored:
            producers.count_sent(topic_id=info.id, messages=stored, **sender._asdict())


def count_pulled(group_id: int, queues: Iterable[PulledQueue | Leased]) -> None:
    queue_infos = snapshot.current().queues
    total = 0
    for queue in queues:
        if queue.rows:
            total += len(queue.rows)
            info = queue_infos.get(queue.queue)
            if info is not None:
                # Lists, not generators: faster for the few messages of a pull.
                size = sum(
                    [len(row[ROW_BODY]) for row in queue.rows if row[ROW_BODY] is not None]
                )
                metrics_history.count_pulled(
                    topic_id=info.topic_id,
                    group_id=group_id,
                    messages=len(queue.rows),
                    bytes=size,
                )
    PULLS.inc()
    PULLED.inc(total)


def count_committed(group_id: int, committed: Iterable[Committed | ReportOutcome]) -> None:
    """Count the positions of a commit, and by topic the messages that it moved past."""
    queue_infos = snapshot.current().queues
    positions = 0
    for result in committed:
        positions += result.state == "ok"
        info = queue_infos.get(result.queue) if result.handled else None
        if info is not None:
            metrics_history.count_handled(
                topic_id=info.topic_id, group_id=group_id, messages=result.handled
            )
    COMMITTED.inc(positions)


def sample() -> None:
    """Set the gauges. A loop of every worker calls it about once a second."""
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
    sample()
    # In gunicorn the registry of this process would show only its own share.
    collectors, groups = REGISTRY, CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        collectors = CollectorRegistry()
        collectors.register(WorkerFiles(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])))
    group_metrics.GroupCollector(groups)
    return generate_latest(collectors) + generate_latest(groups), CONTENT_TYPE_LATEST
