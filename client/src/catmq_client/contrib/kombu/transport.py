"""The transport of kombu on CatMQ: a connection, which receives messages for its channels."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections import deque
from datetime import UTC, datetime
from queue import Empty
from threading import Event
from typing import Any, ClassVar, NamedTuple

from kombu.transport import virtual

from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.channel import Channel
from catmq_client.contrib.kombu.cluster import Cluster, get_cluster
from catmq_client.contrib.kombu.connecting import broker_addresses, cluster_key
from catmq_client.contrib.kombu.options import PORT
from catmq_client.contrib.kombu.reader import QueueReader
from catmq_client.errors import (
    AnswerLost,
    Closed,
    Conflict,
    ConnectFailed,
    ConsumerError,
    DeliveryTimeout,
    Forbidden,
    Gone,
    InvalidRequest,
    MessageRefused,
    NotFound,
    OptionError,
    ServerFailed,
    Unauthenticated,
    Unavailable,
)
from catmq_client.http.transport import HttpTransport, api_path
from catmq_client.sharing.messages import ShareMessage
from catmq_client.version import VERSION

log: logging.Logger = logging.getLogger("catmq.kombu")

# Messages to lease at once if the channels have no prefetch limit.
DEFAULT_PREFETCH = 10
# A longer wait is divided into waits of this length.
STEP_S = 1.0
CLOSE_WITHIN_S = 5.0
CONNECT_WITHIN_S = 4.0


class LeasedMessage(NamedTuple):
    """A message that is leased and not delivered to a channel yet."""

    queue: str
    lease: ShareMessage


class Transport(virtual.Transport):
    """A connection. Its channels lease messages through one member of the share group.

    Messages of transient queues come from memory, those of durable queues from a QueueReader.
    kombu receives either by drain_events(), or through an event loop (Celery's worker). In
    the loop, messages arrive in the background, and a pipe wakes the loop.
    """

    Channel = Channel
    driver_type = driver_name = "catmq"
    default_port = PORT
    can_parse_url = False
    polling_interval = None
    scheme: ClassVar[str] = "catmq"
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
        heartbeats=False,
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectFailed,
        AnswerLost,
        Unavailable,
        ServerFailed,
        Unauthenticated,
        Gone,
        DeliveryTimeout,
        ConsumerError,
    )
    channel_errors = (
        *virtual.Transport.channel_errors,
        NotFound,
        Conflict,
        Forbidden,
        InvalidRequest,
        MessageRefused,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._addresses = broker_addresses(client, self.scheme)
        self._key = cluster_key(client, self._addresses)
        self._pid = os.getpid()
        self._reader: QueueReader | None = None
        self._leased: deque[LeasedMessage] = deque()
        # The durable queue of each topic from which messages are leased.
        self._queue_by_topic: dict[str, str] = {}
        # Set when a message for a transient queue may have arrived.
        self._arrived = Event()
        self._serials = itertools.count(1)
        self._turn = itertools.count()
        # The event loop, and the pipe that wakes it.
        self._loop: Any = None
        self._pipe: tuple[int, int] | None = None

    @property
    def cluster(self) -> Cluster:
        return get_cluster(self._key)

    @property
    def is_own_process(self) -> bool:
        """False in a process that was forked from the process that opened the connection."""
        return self._pid == os.getpid()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": "localhost"}

    def driver_version(self) -> str:
        return VERSION

    def establish_connection(self) -> Any:
        """Connect. Raises an error if the first broker does not answer, so that kombu tries the
        next one.
        """
        first = self._addresses[0]
        probe = HttpTransport(
            [first.url],
            api_key=first.api_key,
            verify=self._key.options.verify,
            discover=False,
        )
        try:
            probe.request(
                "GET",
                api_path("brokers"),
                timeout_s=self.client.connect_timeout or CONNECT_WITHIN_S,
            )
        finally:
            probe.close()
        self.cluster.add_connection(self)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Release unacknowledged messages, report the others, and leave the group."""
        if not self.is_own_process:
            return  # the leases belong to the parent
        self.cluster.transients.set_listener(self, None)
        self._leave_loop()
        self._release(lambda _: True)
        super().close_connection(connection)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(CLOSE_WITHIN_S)
        self.cluster.remove_connection(self)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Receive in the background from now on, and deliver in the event loop."""
        self._leave_loop()
        self._loop, self._pipe = loop, os.pipe()
        for descriptor in self._pipe:
            os.set_blocking(descriptor, False)
        loop.add_reader(self._pipe[0], self._on_readable)
        loop.on_tick.add(self._on_tick)

    def _on_tick(self) -> None:
        """Request as many messages as the channels have room for, before the loop waits."""
        queues, room = self._demand()
        if queues and room:
            self._select_queues(queues)
            self._get_reader().request_messages(room, self.wake)
        elif self._reader is not None:
            self._reader.request_messages(0, self.wake)
        # Delivered only in _on_readable: a task that is handed to a pool process in a tick
        # would be written to its pipe only in the next tick.
        if self._leased or (self._reader is not None and self._reader.has_arrived()):
            self.wake()

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._pipe is not None and os.read(self._pipe[0], 4096):
                pass
        if self._reader is not None:
            self._add_leased(self._reader.take_arrived())
        while self._deliver_next():
            pass

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        pipe, self._pipe = self._pipe, None
        if loop is not None and pipe is not None:
            loop.on_tick.discard(self._on_tick)
            loop.remove(pipe[0])
            for descriptor in pipe:
                os.close(descriptor)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none arrives within `timeout` seconds."""
        if not self.is_own_process:
            raise Closed(
                "this connection belongs to the parent process: open one after the fork"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_next():
            wait_s = STEP_S if deadline is None else deadline - time.monotonic()
            if wait_s <= 0:
                raise TimeoutError
            wait_s = min(wait_s, STEP_S)
            queues, room = self._demand()
            if not queues or not room:
                self._arrived.wait(wait_s)
                continue
            reader = self._get_reader()
            self._select_queues(queues)
            # A message that arrives from here on wakes reader.take().
            if not self._arrived.is_set():
                try:
                    leases = reader.take(room, wait_s)
                except NotFound:
                    self.cluster.forget_topics()
                    raise
                self._add_leased(leases)

    def _deliver_next(self) -> bool:
        """Deliver a message that has arrived. Return False if there is none."""
        # Cleared before the look-up: a message that arrives meanwhile sets it again.
        self._arrived.clear()
        for channel in [*self.channels]:
            for queue in channel.consumed_queues() if channel.prefetch_room() != 0 else ():
                payload = self._take_transient(queue)
                if payload is not None:
                    self._deliver(payload, queue)
                    return True
        while self._leased:
            queue, lease = self._leased.popleft()
            channel = next((c for c in self.channels if queue in c.consumed_queues()), None)
            if channel is None:
                lease.release()
                continue
            payload = self._prepare_payload(queue, lease)
            if payload is None:
                continue
            channel.track_lease(queue, payload["properties"]["delivery_tag"], lease)
            self._deliver(payload, queue)
            return True
        return False

    def _take_transient(self, queue: str) -> messages.Payload | None:
        queued = self.cluster.transients.get(queue)
        if queued is None:
            return None
        return messages.set_delivery_info(
            queued.message,
            queued.payload,
            tag=self._new_tag(queued.message.message_id),
            redelivered=False,
        )

    def _prepare_payload(self, queue: str, lease: ShareMessage) -> messages.Payload | None:
        """Return the payload to deliver. None if the message is invalid, expired, or has to be
        delayed again; then it is settled here.
        """
        try:
            payload = messages.decode(lease.body)
        except messages.WrongMessage as error:
            self.reject_invalid(lease, queue, error)
            return None
        if messages.is_expired(payload, lease.stored_at_ms, datetime.now(UTC)):
            lease.accept()
            return None
        if payload["properties"].get(messages.DELAY_AGAIN):
            # The eta was beyond the longest delay. The message is stored again first and
            # accepted then, so that it is never lost.
            try:
                self.cluster.put(queue, payload)
            except (OptionError, MessageRefused, InvalidRequest) as error:
                self.reject_invalid(lease, queue, error)
            else:
                lease.accept()
            return None
        return messages.set_delivery_info(
            lease,
            payload,
            tag=self._new_tag(lease.message_id),
            redelivered=lease.deliveries > 1,
        )

    @staticmethod
    def reject_invalid(lease: ShareMessage, queue: str, error: Exception) -> None:
        """Reject a message that no consumer can handle. It becomes a dead letter."""
        log.error("message %s of queue %s is rejected: %s", lease, queue, error)
        lease.reject(error)

    def _new_tag(self, message_id: str) -> str:
        """Return a delivery tag. Each delivery of a message has a tag of its own."""
        return f"{message_id}.{next(self._serials)}"

    def on_consumers_changed(self) -> None:
        """Release the leased messages of queues without consumers."""
        if self.cluster.transients is not None:
            self.cluster.transients.set_listener(self, self.wake)
        consumed = {
            queue for channel in self.channels for queue in channel.consumed_queues()
        }
        self._release(lambda leased: leased.queue not in consumed)
        if self._reader is not None:
            self._select_queues(sorted(consumed))

    def wake(self) -> None:
        """Wake the waiting thread and the event loop, because a message has arrived. May be
        called in any thread.
        """
        self._arrived.set()
        pipe = self._pipe
        if pipe is not None:
            # An OSError does no harm. Pipe full: the loop will wake. Closed: there is no loop.
            with contextlib.suppress(OSError):
                os.write(pipe[1], b"!")
        if self._reader is not None:
            self._reader.wake()

    def flush(self) -> None:
        """Report released messages now, so that they can be leased again."""
        if self._reader is not None:
            self._reader.flush()

    def purge(self, queue: str) -> int:
        # Those that are leased and not delivered are released first, so that they are counted
        # and skipped, too.
        self._release(lambda leased: leased.queue == queue)
        if self._reader is not None:
            self._reader.release_topics(self.cluster.topics_of_queue(queue))
            self._reader.flush()
        return self.cluster.purge(queue)

    def get(self, queue: str) -> tuple[messages.Payload, ShareMessage | None]:
        """Return a message of a queue and its lease, which is None for a transient queue.
        Raises Empty.
        """
        if not self.is_own_process:
            raise Closed(
                "this connection belongs to the parent process: open one after the fork"
            )
        if self.cluster.transients.has(queue):
            payload = self._take_transient(queue)
            if payload is None:
                raise Empty
            return payload, None
        while True:
            lease = self._lease_one(queue)
            payload = self._prepare_payload(queue, lease)
            if payload is not None:
                return payload, lease

    def _lease_one(self, queue: str) -> ShareMessage:
        """Return a leased message of a queue. Raises Empty."""
        for leased in self._leased:
            if leased.queue == queue:
                self._leased.remove(leased)
                return leased.lease
        reader = self._get_reader()
        self._select_queues([queue])
        # Released messages of this process have to be available again.
        reader.flush()
        lease = reader.get()
        if lease is None:
            raise Empty
        return lease

    def _add_leased(self, leases: list[ShareMessage]) -> None:
        for lease in leases:
            queue = self._queue_by_topic.get(lease.run.subscription)
            if queue is None:
                lease.release()
            else:
                self._leased.append(LeasedMessage(queue, lease))

    def _demand(self) -> tuple[list[str], int]:
        """Return the durable queues to lease from, and the number of messages to lease.

        A message may go to any of the channels, so the one with the least room counts.
        """
        transients, queues = self.cluster.transients, list[str]()
        room: int | None = None  # no limit so far
        for channel in self.channels:
            channel_room = channel.prefetch_room()
            durable = [
                queue for queue in channel.consumed_queues() if not transients.has(queue)
            ]
            if durable and channel_room != 0:
                queues += durable
                if channel_room is not None:
                    room = channel_room if room is None else min(room, channel_room)
        return queues, DEFAULT_PREFETCH if room is None else room

    def _select_queues(self, queues: list[str]) -> None:
        """Lease from these queues from now on: urgent messages first. The queues take turns
        within a priority step.
        """
        durable = [
            queue
            for queue in dict.fromkeys(queues)
            if not self.cluster.transients.has(queue)
        ]
        turn = next(self._turn) % len(durable) if durable else 0
        rotated = durable[turn:] + durable[:turn]
        topics = {
            self.cluster.topic_for_step(queue, step): queue
            for step in self.cluster.steps()
            for queue in rotated
        }
        self._queue_by_topic |= topics
        self._get_reader().select_topics([*topics])

    def _get_reader(self) -> QueueReader:
        if self._reader is None:
            self._reader = self.cluster.new_reader()
        return self._reader

    def _release(self, is_selected: Any) -> None:
        """Release the selected messages that are not delivered yet."""
        for leased in [leased for leased in self._leased if is_selected(leased)]:
            self._leased.remove(leased)
            leased.lease.release()


class SecureTransport(Transport):
    """A connection with TLS: `catmqs://`."""

    scheme = "catmqs"
