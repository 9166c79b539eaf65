"""A process's access to the brokers of a vhost: topics, bindings, sends, and readers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import call_when_ready, create_if_missing
from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.names import TopicNames
from catmq_client.contrib.kombu.options import TransportOptions
from catmq_client.contrib.kombu.reader import QueueReader
from catmq_client.contrib.kombu.registry import Registry
from catmq_client.contrib.kombu.transients import TransientQueues
from catmq_client.errors import Forbidden, NotFound, OptionError
from catmq_client.http.transport import HttpTransport
from catmq_client.message import Message, Source, make_row
from catmq_client.producer import Producer

log: logging.Logger = logging.getLogger("catmq.kombu")

# Days for which messages are kept: in the log of an exchange, in the bindings, and unread
# messages of queues.
LOG_DAYS = 1
BINDINGS_DAYS = UNREAD_DAYS = 3650
# Messages that a request reads from a log.
PAGE = 500
# A request at the end of a log waits for messages for LOG_WAIT_MS. If the broker refuses to
# wait, the next request follows after PAUSE_S.
LOG_WAIT_MS = 10_000
PAUSE_S = 0.25


class ClusterKey(NamedTuple):
    """Parameters of a cluster. Connections with equal parameters share the cluster."""

    urls: tuple[str, ...]
    api_key: str | None
    vhost: str
    options: TransportOptions


class Cluster:
    """Topics, bindings, sends, and transient queues of a vhost in this process.

    All connections of a process with equal parameters share a cluster. It is thread-safe.
    """

    def __init__(self, key: ClusterKey) -> None:
        self.options: TransportOptions = key.options
        self.names: TopicNames = TopicNames(key.vhost)
        self.group: str = key.options.group or self.names.vhost
        self.http: HttpTransport = HttpTransport(
            key.urls, api_key=key.api_key, verify=key.options.verify
        )
        self.admin: Admin = Admin(self.http)
        send_ms = key.options.send_timeout_s * 1000
        self._producer = Producer(
            transport=self.http,
            delivery_timeout_ms=send_ms,
            request_timeout_ms=min(send_ms, 10_000),
            max_block_ms=send_ms,
        )
        self.registry: Registry = Registry(
            self._read_bindings, partial(self._producer.send, self.names.bindings)
        )
        self.transients: TransientQueues = TransientQueues(self._open_log, self.step_of)
        # Names of topics, and of the group, that exist.
        self._ready: set[str] = set()
        self._connections: set[object] = set()
        self._queue_ids: dict[str, int] = {}
        self._has_warned = False
        self._lock = threading.RLock()

    def add_connection(self, connection: object) -> None:
        with self._lock:
            self._connections.add(connection)

    def remove_connection(self, connection: object) -> None:
        """Remove a connection. After the last one the transient queues are deleted."""
        with self._lock:
            self._connections.discard(connection)
            if not self._connections:
                self.transients.clear()

    def steps(self) -> Sequence[int]:
        """Return the priority steps, the most urgent first."""
        return sorted(self.options.priority_steps or (0,), reverse=True)

    def step_of(self, payload: messages.Payload) -> int:
        return self.options.step(messages.parse_priority(payload))

    def topic_for_step(self, queue: str, step: int) -> str:
        """Return a queue's topic for a step. The lowest step has the topic without a suffix."""
        return self.names.topic(queue, step=0 if step == min(self.steps()) else step)

    def topics_of_queue(self, queue: str) -> list[str]:
        """Return the topics of a queue, the most urgent first."""
        return [self.topic_for_step(queue, step) for step in self.steps()]

    def ensure_queue(self, queue: str) -> None:
        """Create the topics of a durable queue and their subscriptions, if they are missing."""
        self.ensure_group()
        for topic in self.topics_of_queue(queue):
            if topic not in self._ready:
                self._ensure_topic(
                    topic, queues=self.options.topic_queues, keep_unread_days=UNREAD_DAYS
                )
                create_if_missing(partial(self.admin.subscribe, self.group, topic))
                self._ready.add(topic)
        self.registry.record(
            {"op": "queue", "queue": queue},
            is_new=lambda table, _: queue not in table.queues,
        )

    def ensure_group(self) -> None:
        """Create the share group, or adapt its settings. Raises OptionError if the group has
        another mode.
        """
        if self.group in self._ready:
            return
        settings = {
            "lease_ms": self.options.lease_s * 1000,
            "max_deliveries": self.options.max_deliveries,
        }
        try:
            group: Any = self.admin.group(self.group)
        except NotFound:
            self._create(
                f"group {self.group}",
                partial(self.admin.create_group, self.group, mode="share", **settings),
            )
            # The broker that answers may not have seen the new group yet.
            group = call_when_ready(partial(self.admin.group, self.group))
        if group["mode"] != "share":
            raise OptionError(
                f"group {self.group} is no share group, its mode is {group['mode']}: write "
                "another name "
                "behind the / of the broker URL, or the option group"
            )
        changes = {
            name: value for name, value in settings.items() if group.get(name) != value
        }
        if changes:
            try:
                self.admin.change_group(self.group, **changes)
            except Forbidden as error:
                log.warning(
                    "group %s keeps its settings, not %s: %s", self.group, changes, error
                )
        self._ready.add(self.group)

    def forget_topics(self) -> None:
        """Check again at the next use which topics exist, because one was deleted."""
        self._ready.clear()
        self._queue_ids.clear()

    def _ensure_topic(self, topic: str, **settings: Any) -> None:
        try:
            self.admin.topic(topic)
        except NotFound:
            self._create(
                f"topic {topic}", partial(self.admin.create_topic, topic, **settings)
            )

    def _create(self, subject: str, create: Callable[[], object]) -> None:
        if not self.options.create_topics:
            raise NotFound(
                f"There is no {subject}, and create_topics is False: make it.",
                code="topic_not_found",
            )
        create_if_missing(create)

    def _queue_id(self, topic: str, retention_days: int) -> int:
        """Return the queue of a topic that has a single one. Creates the topic if needed."""
        with self._lock:
            if topic not in self._queue_ids:
                self._ensure_topic(topic, queues=1, retention_days=retention_days)
                self._queue_ids[topic] = call_when_ready(partial(self._first_queue, topic))
            return self._queue_ids[topic]

    def _first_queue(self, topic: str) -> int:
        """Return the id of a topic's first queue. Raises NotFound while the queue is being
        created.
        """
        queues = self.admin.queues(topic)
        if not queues:
            raise NotFound(f"Topic {topic} has no queue yet.", code="queue_not_found")
        return int(queues[0]["queue"])

    def read_messages(
        self, topic: str, queue: int, offset: int, **more: Any
    ) -> list[Message]:
        """Return up to PAGE messages of a queue, from an offset on."""
        views = self.admin.messages(topic, queue=queue, offset=offset, limit=PAGE, **more)
        return [Message(Source(topic, queue, 0), make_row(view)) for view in views]

    def _read_bindings(self, offset: int) -> tuple[list[bytes], int]:
        topic = self.names.bindings
        page = self.read_messages(topic, self._queue_id(topic, BINDINGS_DAYS), offset)
        return [entry.body for entry in page], page[-1].offset + 1 if page else offset

    def _open_log(self, exchange: str) -> ExchangeLog:
        topic = self.names.log_topic(exchange)
        # The topic may have been deleted and created again, with another queue.
        self._queue_ids.pop(topic, None)
        queue = self._queue_id(topic, LOG_DAYS)
        self.registry.record(
            {"op": "log", "exchange": exchange},
            is_new=lambda table, _: exchange not in table.logged,
        )
        return ExchangeLog(self, topic, queue)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        self.registry.record(
            {"op": "exchange", "exchange": exchange, "type": kind},
            is_new=lambda table, _: table.exchanges.get(exchange) != kind,
        )

    def publish(self, payload: messages.Payload, exchange: str, key: str) -> None:
        """Store a message in every queue to which the exchange routes it. Returns when the
        message is durable.

        Raises NotFound if the message is sent to a queue by name that does not exist.
        """
        table = self.registry.table()
        targets = table.targets(exchange, key)
        # No target may mean that the table is too old. Events often have no listener, so for
        # them the table is not read again for each message.
        may_have_no_target = (
            exchange in table.logged or table.exchanges.get(exchange) == "topic"
        )
        if not targets and not may_have_no_target:
            table = self.registry.table(max_age_s=0.0)
            targets = table.targets(exchange, key)
        if not targets and exchange not in table.logged:
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
            return
        for queue in targets:
            self.put(queue, payload)
        # A message to the default exchange has one queue: if a durable one got it, the log,
        # which serves transient queues, does not need it.
        if exchange in table.logged and not (targets and not exchange):
            self._producer.send(
                self.names.log_topic(exchange),
                messages.encode(payload),
                **messages.search_fields(payload),
            )

    def put(self, queue: str, payload: messages.Payload) -> None:
        """Store a message in a durable queue. Brokers delay a task until its eta."""
        # Once in a process: with Redis and RabbitMQ priorities have an effect.
        if (
            not self._has_warned
            and not self.options.priority_steps
            and messages.parse_priority(payload)
        ):
            self._has_warned = True
            log.warning(
                "queue %s: priorities are ignored; set priority_steps, such as [0, 3, 6, "
                "9], in %s",
                queue,
                "broker_transport_options",
            )
        now = datetime.now(UTC)
        delay = messages.delay_arguments(payload, now) if self.options.native_eta else {}
        self._producer.send(
            self.topic_for_step(queue, self.step_of(payload)),
            messages.encode(payload),
            **messages.search_fields(payload),
            **delay,
        )

    def size(self, queue: str) -> int:
        """Return the number of messages of a queue that are not delivered yet."""
        topics, lag = {*self.topics_of_queue(queue)}, self.admin.lag(self.group)
        rows = (row for row in lag["queues"] if row["topic"] in topics)
        return sum(max(0, (row["lag"] or 0) - (row.get("in_flight") or 0)) for row in rows)

    def purge(self, queue: str) -> int:
        """Skip the messages of a queue. Return their number."""
        size = self.size(queue)
        for topic in self.topics_of_queue(queue):
            self.admin.reset_offsets(self.group, topic, to="latest")
        return size

    def new_reader(self) -> QueueReader:
        """Return a new member of the share group, which leases nothing yet."""
        self.ensure_group()
        max_lease_s = self.options.max_lease_s
        limits: dict[str, Any] = (
            {} if max_lease_s is None else {"max_processing_ms": max_lease_s * 1000}
        )
        return QueueReader(transport=self.http, group=self.group, **limits)


class ExchangeLog:
    """Reads the log of an exchange, from the end that it has when this object is created."""

    def __init__(self, cluster: Cluster, topic: str, queue: int) -> None:
        self._cluster, self._topic, self._queue = cluster, topic, queue
        self._offset = (
            call_when_ready(partial(cluster.admin.queue, topic, queue))["head"] or 0
        )

    def read(self) -> list[Message]:
        """Return new messages. Waits for them for up to LOG_WAIT_MS."""
        began_at = time.monotonic()
        new_messages = self._cluster.read_messages(
            self._topic, self._queue, self._offset, wait_ms=LOG_WAIT_MS
        )
        if new_messages:
            self._offset = new_messages[-1].offset + 1
        elif time.monotonic() - began_at < LOG_WAIT_MS / 2000:
            # The broker answered early: it has too many waiting requests.
            time.sleep(PAUSE_S)
        return new_messages


# By process id, too: a forked child must not use its parent's sockets and threads.
_clusters: dict[tuple[int, ClusterKey], Cluster] = {}


def get_cluster(key: ClusterKey) -> Cluster:
    """Return the cluster of this process for the parameters; created at the first call."""
    own_key = os.getpid(), key
    cluster = _clusters.get(own_key)
    if cluster is None:
        # If two threads create a cluster, setdefault gives both the same.
        cluster = _clusters.setdefault(own_key, Cluster(key))
    return cluster
