"""The brokers of a vhost, as one process uses them; see Cluster."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import call_when_ready, create_if_missing
from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.names import Names
from catmq_client.contrib.kombu.options import TransportOptions
from catmq_client.contrib.kombu.reader import QueueReader
from catmq_client.contrib.kombu.registry import Entry, Registry, Table
from catmq_client.contrib.kombu.transients import Transients
from catmq_client.errors import Forbidden, NotFound, OptionError
from catmq_client.http.transport import HttpTransport
from catmq_client.message import Message, Source, make_row
from catmq_client.producer import Producer

log = logging.getLogger("catmq.kombu")

# Days that messages are kept: of a log, of the bindings, and what no worker has read.
LOG_DAYS = 1
BINDINGS_DAYS = UNREAD_DAYS = 3650
# Messages of a log that one request reads.
PAGE = 500
# How long a request waits at the end of a log, ms, and the pause where brokers do not wait,
# s.
LOG_WAIT_MS = 10_000
PAUSE_S = 0.25


class Key(NamedTuple):
    """Parameters of a cluster: connections that agree in them share it."""

    urls: tuple[str, ...]
    api_key: str | None
    vhost: str
    options: TransportOptions


class Cluster:
    """The brokers of a vhost: topics, bindings, sends, and the queues that go with this
    process.

    All connections of a process that agree in their parameters share one. Safe for all
    threads.
    """

    def __init__(self, key: Key) -> None:
        self.options, self.names = key.options, Names(key.vhost)
        self.group = key.options.group or self.names.vhost
        self.http = HttpTransport(key.urls, api_key=key.api_key, verify=key.options.verify)
        self.admin = Admin(self.http)
        send_ms = key.options.send_timeout_s * 1000
        self._producer = Producer(
            transport=self.http,
            delivery_timeout_ms=send_ms,
            request_timeout_ms=min(send_ms, 10_000),
            max_block_ms=send_ms,
        )
        self.registry = Registry(self._read_bindings, self._append_binding)
        self.transients = Transients(self._open_log, self.step)
        # Topics, and the group, that were seen to be there.
        self._ready: set[str] = set()
        # Open connections.
        self._users: set[object] = set()
        self._queue_ids: dict[str, int] = {}
        self._has_warned = False
        self._lock = threading.RLock()

    def opened(self, by: object) -> None:
        """A connection uses it."""
        with self._lock:
            self._users.add(by)

    def closed(self, by: object) -> None:
        """A connection uses it no more; with the last one the queues of this process go."""
        with self._lock:
            self._users.discard(by)
            if not self._users:
                self.transients.clear()

    def steps(self) -> Sequence[int]:
        """Return the priority steps, the most urgent first."""
        return sorted(self.options.priority_steps or (0,), reverse=True)

    def step(self, payload: messages.Payload) -> int:
        return self.options.step(messages.priority(payload))

    def topic_of(self, queue: str, step: int) -> str:
        """Return the topic of a queue for a step; the least urgent one has the queue's own
        name.
        """
        least = min(self.steps())
        return self.names.topic(queue, step=0 if step == least else step)

    def topics_of(self, queue: str) -> list[str]:
        """Return the topics of a queue, the most urgent first."""
        return [self.topic_of(queue, step) for step in self.steps()]

    def ensure_queue(self, queue: str) -> None:
        """Make the topics of a durable queue, and let the group read them."""
        self.ensure_group()
        for topic in self.topics_of(queue):
            if topic not in self._ready:
                self._ensure_topic(
                    topic, queues=self.options.topic_queues, keep_unread_days=UNREAD_DAYS
                )
                create_if_missing(partial(self.admin.subscribe, self.group, topic))
                self._ready.add(topic)
        self._record(
            {"op": "queue", "queue": queue},
            lambda table, one: one["queue"] not in table.queues,
        )

    def ensure_group(self) -> None:
        """Make the share group, or check the one that is there."""
        if self.group in self._ready:
            return
        lease_ms, deliveries = self.options.lease_s * 1000, self.options.max_deliveries
        wanted = {"lease_ms": lease_ms, "max_deliveries": deliveries}
        try:
            found: Any = self.admin.group(self.group)
        except NotFound:
            make = partial(self.admin.create_group, self.group, mode="share", **wanted)
            self._make(f"group {self.group}", make)
            found = call_when_ready(partial(self.admin.group, self.group))
        if found["mode"] != "share":
            raise OptionError(
                f"group {self.group} is no share group, its mode is {found['mode']}: write "
                "another name "
                "behind the / of the broker URL, or the option group"
            )
        self._adapt_group(
            {name: value for name, value in wanted.items() if found.get(name) != value}
        )
        self._ready.add(self.group)

    def _adapt_group(self, other: dict[str, int]) -> None:
        if not other:
            return
        try:
            self.admin.change_group(self.group, **other)
        except Forbidden as error:
            log.warning("group %s keeps its settings, not %s: %s", self.group, other, error)

    def forget(self) -> None:
        """Look again whether topics are there: one was gone."""
        self._ready.clear()
        self._queue_ids.clear()

    def _ensure_topic(self, topic: str, **settings: Any) -> None:
        try:
            self.admin.topic(topic)
        except NotFound:
            self._make(
                f"topic {topic}", partial(self.admin.create_topic, topic, **settings)
            )

    def _make(self, what: str, make: Callable[[], object]) -> None:
        if not self.options.create_topics:
            raise NotFound(
                f"There is no {what}, and create_topics is False: make it.",
                code="topic_not_found",
            )
        create_if_missing(make)

    def _queue_id(self, topic: str, days: int) -> int:
        with self._lock:
            if topic not in self._queue_ids:
                self._ensure_topic(topic, queues=1, retention_days=days)
                self._queue_ids[topic] = call_when_ready(partial(self._first_queue, topic))
            return self._queue_ids[topic]

    def _first_queue(self, topic: str) -> int:
        """Return the id of a topic's first queue. Raises NotFound while its queues are
        being made.
        """
        queues = self.admin.queues(topic)
        if not queues:
            raise NotFound(f"Topic {topic} has no queue yet.", code="queue_not_found")
        return int(queues[0]["queue"])

    def stored(self, topic: str, queue: int, offset: int, **more: Any) -> list[Message]:
        """Return messages of a queue from an offset on."""
        views = self.admin.messages(topic, queue=queue, offset=offset, limit=PAGE, **more)
        return [Message(Source(topic, queue, 0), make_row(view)) for view in views]

    def _read_bindings(self, offset: int) -> tuple[list[bytes], int]:
        topic = self.names.bindings
        found = self.stored(topic, self._queue_id(topic, BINDINGS_DAYS), offset)
        return [one.body for one in found], found[-1].offset + 1 if found else offset

    def _append_binding(self, body: bytes) -> None:
        self._producer.send(self.names.bindings, body)

    def _record(self, entry: Entry, is_new: Callable[[Table, Entry], bool]) -> None:
        self.registry.ensure(entry, is_new=is_new)

    def _open_log(self, exchange: str) -> ExchangeLog:
        topic = self.names.log(exchange)
        self._queue_ids.pop(topic, None)  # it may be another one by now
        queue = self._queue_id(topic, LOG_DAYS)
        entry = {"op": "log", "exchange": exchange}
        self._record(entry, lambda table, one: one["exchange"] not in table.logged)
        return ExchangeLog(self, topic, queue)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        entry = {"op": "exchange", "exchange": exchange, "type": kind}
        self._record(
            entry, lambda table, one: table.exchanges.get(one["exchange"]) != one["type"]
        )

    def publish(self, payload: messages.Payload, exchange: str, key: str) -> None:
        """Store a message in every queue that gets it; return when it is durable.

        Raises NotFound if it is sent to a queue by name that is not there.
        """
        table = self.registry.table()
        targets = table.targets(exchange, key)
        # Perhaps nobody listens to events: the table is not read anew for each of them.
        is_known = exchange in table.logged or table.exchanges.get(exchange) == "topic"
        if not targets and not is_known:
            table = self.registry.table(max_age_s=0.0)
            targets = table.targets(exchange, key)
        if not targets and exchange not in table.logged:
            self._tell_unroutable(exchange, key)
            return
        for queue in targets:
            self.put(queue, payload)
        if exchange in table.logged and not (targets and not exchange):
            self._producer.send(
                self.names.log(exchange),
                messages.encoded(payload),
                **messages.labels(payload),
            )

    def put(self, queue: str, payload: messages.Payload) -> None:
        """Store a message in a durable queue; a task with an eta is delayed until then."""
        self._warn_of_priority(queue, payload)
        now = datetime.now(UTC)
        later = messages.delay(payload, now) if self.options.native_eta else {}
        topic = self.topic_of(queue, self.step(payload))
        self._producer.send(
            topic, messages.encoded(payload), **messages.labels(payload), **later
        )

    def _warn_of_priority(self, queue: str, payload: messages.Payload) -> None:
        """Say once in a process that a priority does nothing, which it does with Redis and
        RabbitMQ.
        """
        if (
            self._has_warned
            or self.options.priority_steps
            or not messages.priority(payload)
        ):
            return
        self._has_warned = True
        warning = (
            "queue %s: priorities are ignored; set priority_steps, such as [0, 3, 6, "
            "9], in %s"
        )
        log.warning(warning, queue, "broker_transport_options")

    @staticmethod
    def _tell_unroutable(exchange: str, key: str) -> None:
        if not exchange:
            raise NotFound(
                f"There is no queue {key}: declare it before sending to it.",
                code="queue_not_found",
            )
        log.debug(
            "exchange %r has no queue for routing key %r: the message is dropped",
            exchange,
            key,
        )

    def size(self, queue: str) -> int:
        """Return the number of messages that are not delivered yet."""
        wanted, lag = {*self.topics_of(queue)}, self.admin.lag(self.group)
        rows = (row for row in lag["queues"] if row["topic"] in wanted)
        return sum(max(0, (row["lag"] or 0) - (row.get("in_flight") or 0)) for row in rows)

    def purge(self, queue: str) -> int:
        """Skip what a queue holds; return how many messages that were."""
        size = self.size(queue)
        for topic in self.topics_of(queue):
            self.admin.reset_offsets(self.group, topic, to="latest")
        return size

    def new_reader(self) -> QueueReader:
        """Return a new member of the group, which leases nothing yet."""
        self.ensure_group()
        limit_s = self.options.max_lease_s
        more: dict[str, Any] = (
            {} if limit_s is None else {"max_processing_ms": limit_s * 1000}
        )
        return QueueReader(transport=self.http, group=self.group, **more)

    def settle(
        self, entries: Iterable[Entry], is_new: Callable[[Table, Entry], bool]
    ) -> None:
        """Record changes of bindings that are new."""
        self.registry.ensure(*entries, is_new=is_new)


class ExchangeLog:
    """The log of an exchange, read from the end that it had at first."""

    def __init__(self, cluster: Cluster, topic: str, queue: int) -> None:
        self._cluster, self._topic, self._queue = cluster, topic, queue
        self._offset = (
            call_when_ready(partial(cluster.admin.queue, topic, queue))["head"] or 0
        )

    def read(self) -> list[Message]:
        """Return what is new; waits for some of it for a while."""
        begun = time.monotonic()
        found = self._cluster.stored(
            self._topic, self._queue, self._offset, wait_ms=LOG_WAIT_MS
        )
        if found:
            self._offset = found[-1].offset + 1
        elif time.monotonic() - begun < LOG_WAIT_MS / 2000:
            time.sleep(PAUSE_S)  # the broker had no place to wait
        return found


_clusters: dict[tuple[int, Key], Cluster] = {}


def cluster(key: Key) -> Cluster:
    """Return the cluster of this process for some parameters: a fork gets its own."""
    mine = os.getpid(), key
    found = _clusters.get(mine)
    if found is None:
        # Of two threads that make one, both use the one that was entered first.
        found = _clusters.setdefault(mine, Cluster(key))
    return found
