"""The transport of kombu on CatMQ; see Transport."""

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
from catmq_client.contrib.kombu.cluster import Cluster, cluster
from catmq_client.contrib.kombu.connecting import addresses_of, key_of
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

log = logging.getLogger("catmq.kombu")

# Messages asked for at once where kombu has no limit.
MANY = 10
# A wait without a limit is divided into waits of this length, s.
STEP_S = 1.0
CLOSE_WITHIN_S = 5.0
CONNECT_WITHIN_S = 4.0


class Waiting(NamedTuple):
    """A message that was leased, and is not delivered yet."""

    queue: str
    lease: ShareMessage


class Transport(virtual.Transport):
    """A connection: its channels lease messages through one member of the share group."""

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
        self._addresses = addresses_of(client, self.scheme)
        self._key = key_of(client, self._addresses)
        self._pid = os.getpid()
        self._reader: QueueReader | None = None
        self._waiting: deque[Waiting] = deque()
        # The durable queues that are leased from, by topic.
        self._queue_of: dict[str, str] = {}
        self._arrived = Event()
        self._serials = itertools.count(1)
        self._turn = itertools.count()
        # An event loop that waits for messages, and the pipe that wakes it.
        self._loop: Any = None
        self._pipe: tuple[int, int] | None = None

    @property
    def cluster(self) -> Cluster:
        return cluster(self._key)

    @property
    def is_ours(self) -> bool:
        """Return False in a process that was forked from the one that opened the
        connection.
        """
        return self._pid == os.getpid()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": "localhost"}

    def driver_version(self) -> str:
        return VERSION

    def establish_connection(self) -> Any:
        """Ask the broker of the URL, so that kombu goes to the next one if it is away."""
        first, verify = self._addresses[0], self._key.options.verify
        probe = HttpTransport(
            [first.url], api_key=first.api_key, verify=verify, discover=False
        )
        try:
            limit_s = self.client.connect_timeout or CONNECT_WITHIN_S
            probe.request("GET", api_path("brokers"), timeout_s=limit_s)
        finally:
            probe.close()
        self.cluster.opened(self)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Give back what is not acknowledged, report the rest, and leave the group."""
        if not self.is_ours:
            return  # its leases are those of the parent
        self.cluster.transients.listen(self, None)
        self._leave_loop()
        self._give_back(lambda _: True)
        super().close_connection(connection)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(CLOSE_WITHIN_S)
        self.cluster.closed(self)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let an event loop deliver: messages come in the background, and wake it through a
        pipe.
        """
        self._leave_loop()
        self._loop, self._pipe = loop, os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        loop.add_reader(self._pipe[0], self._on_readable)
        loop.on_tick.add(self._on_tick)

    def _on_tick(self) -> None:
        """Lease as much as there is room for, before the loop waits.

        Nothing is delivered here: what that sends to a process of a pool would wait until
        the next tick.
        """
        queues, room = self._wanted()
        if queues and room:
            self._choose(queues)
            self._member().want(room, self.wake)
        elif self._reader is not None:
            self._reader.want(0, self.wake)
        if self._waiting or (self._reader is not None and self._reader.has_come()):
            self.wake()

    def _on_readable(self) -> None:
        """Deliver what is here."""
        with contextlib.suppress(BlockingIOError):
            while self._pipe is not None and os.read(self._pipe[0], 4096):
                pass
        if self._reader is not None:
            self._take_in(self._reader.come())
        while self._deliver_next():
            pass

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        pipe, self._pipe = self._pipe, None
        if loop is not None and pipe is not None:
            loop.on_tick.discard(self._on_tick)
            loop.remove(pipe[0])
            for end in pipe:
                os.close(end)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none came."""
        if not self.is_ours:
            raise Closed(
                "this connection belongs to the parent process: open one after the fork"
            )
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_next():
            left_s = STEP_S if give_up_at is None else give_up_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._wait(min(left_s, STEP_S))

    def _deliver_next(self) -> bool:
        """Deliver a message that is here; return False if there is none."""
        return self._deliver_transient() or self._deliver_leased()

    def _deliver_transient(self) -> bool:
        self._arrived.clear()
        transients = self.cluster.transients
        for channel in [*self.channels]:
            for queue in channel.consumes() if channel.wants() != 0 else ():
                held = transients.get(queue)
                if held is not None:
                    tag = self._tag(held.message.message_id)
                    payload = messages.arrived(
                        held.message, held.payload, tag=tag, redelivered=False
                    )
                    self._deliver(payload, queue)
                    return True
        return False

    def _deliver_leased(self) -> bool:
        while self._waiting:
            queue, lease = self._waiting.popleft()
            channel = self._channel_of(queue)
            if channel is None:
                lease.release()
                continue
            payload = self._payload(queue, lease)
            if payload is None:
                continue
            channel.takes_over(queue, payload["properties"]["delivery_tag"], lease)
            self._deliver(payload, queue)
            return True
        return False

    def _payload(self, queue: str, lease: ShareMessage) -> messages.Payload | None:
        """Return a message to deliver; None if it is no message for a consumer, or not yet."""
        try:
            payload = messages.decoded(lease.body)
        except messages.WrongMessage as error:
            self.bury(lease, queue, error)
            return None
        if messages.is_expired(payload, lease.stored_at_ms, datetime.now(UTC)):
            lease.accept()
            return None
        if payload["properties"].get(messages.AGAIN):
            # Its eta is further away than the longest delay: it is stored again before it
            # is done here.
            try:
                self.cluster.put(queue, payload)
            except (OptionError, MessageRefused, InvalidRequest) as error:
                self.bury(lease, queue, error)
            else:
                lease.accept()
            return None
        tag = self._tag(lease.message_id)
        return messages.arrived(lease, payload, tag=tag, redelivered=lease.deliveries > 1)

    @staticmethod
    def bury(lease: ShareMessage, queue: str, error: Exception) -> None:
        """Make a dead letter of a message that no consumer can handle."""
        log.error("message %s of queue %s is rejected: %s", lease, queue, error)
        lease.reject(error)

    def _tag(self, message_id: str) -> str:
        """Return a delivery tag: a message that comes again gets another one."""
        return f"{message_id}.{next(self._serials)}"

    def _channel_of(self, queue: str) -> Any:
        return next((one for one in self.channels if queue in one.consumes()), None)

    def consumers_changed(self) -> None:
        """Give back what waits for queues that nobody consumes any more."""
        if self.cluster.transients is not None:
            self.cluster.transients.listen(self, self.wake)
        consumed = {queue for channel in self.channels for queue in channel.consumes()}
        self._give_back(lambda one: one.queue not in consumed)
        if self._reader is not None:
            self._choose(sorted(consumed))

    def wake(self) -> None:
        """A message for a transient queue has come; called by any thread."""
        self._arrived.set()
        pipe = self._pipe
        if pipe is not None:
            # Full: it will wake. Closed: nobody waits.
            with contextlib.suppress(OSError):
                os.write(pipe[1], b"!")
        if self._reader is not None:
            self._reader.wake()

    def flush(self) -> None:
        """Tell brokers what was given back, so that it can be had again."""
        if self._reader is not None:
            self._reader.flush()

    def purge(self, queue: str) -> int:
        """Skip what a queue holds, what was leased of it and is not delivered included."""
        self._give_back(lambda one: one.queue == queue)
        if self._reader is not None:
            self._reader.give_back(self.cluster.topics_of(queue))
            self._reader.flush()
        return self.cluster.purge(queue)

    def get(self, queue: str) -> tuple[messages.Payload, ShareMessage | None]:
        """Return a message of a queue, and its lease. Raises Empty."""
        if not self.is_ours:
            raise Closed(
                "this connection belongs to the parent process: open one after the fork"
            )
        transients = self.cluster.transients
        if transients.has(queue):
            held = transients.get(queue)
            if held is None:
                raise Empty
            tag = self._tag(held.message.message_id)
            return messages.arrived(
                held.message, held.payload, tag=tag, redelivered=False
            ), None
        while True:
            lease = self._lease_of(queue)
            payload = self._payload(queue, lease)
            if payload is not None:
                return payload, lease

    def _lease_of(self, queue: str) -> ShareMessage:
        for one in self._waiting:
            if one.queue == queue:
                self._waiting.remove(one)
                return one.lease
        reader = self._member()
        self._choose([queue])
        reader.flush()
        lease = reader.get()
        if lease is None:
            raise Empty
        return lease

    def _wait(self, within_s: float) -> None:
        """Wait for a message, of whatever queue."""
        queues, room = self._wanted()
        if not queues or not room:
            self._arrived.wait(within_s)
            return
        reader = self._member()
        self._choose(queues)
        if self._arrived.is_set():
            return
        try:
            taken = reader.take(room, within_s)
        except NotFound:
            self.cluster.forget()
            raise
        self._take_in(taken)

    def _take_in(self, taken: list[ShareMessage]) -> None:
        for lease in taken:
            queue = self._queue_of.get(lease.run.subscription)
            if queue is None:
                lease.release()
            else:
                self._waiting.append(Waiting(queue, lease))

    def _wanted(self) -> tuple[list[str], int]:
        """Return the durable queues to lease from, and how many messages all of their
        channels take.
        """
        transients, queues, room = self.cluster.transients, [], MANY
        for channel in self.channels:
            wants = channel.wants()
            mine = [queue for queue in channel.consumes() if not transients.has(queue)]
            if mine and wants != 0:
                queues += mine
                room = (
                    room if wants is None else min(room, wants) if room != MANY else wants
                )
        return queues, room

    def _choose(self, queues: list[str]) -> None:
        """Lease from these queues: urgent messages first, and of one step the queues in
        turn.
        """
        durable = [
            queue
            for queue in dict.fromkeys(queues)
            if not self.cluster.transients.has(queue)
        ]
        turn = next(self._turn) % len(durable) if durable else 0
        turned = durable[turn:] + durable[:turn]
        topics = {
            self.cluster.topic_of(queue, step): queue
            for step in self.cluster.steps()
            for queue in turned
        }
        self._queue_of |= topics
        self._member().choose([*topics])

    def _member(self) -> QueueReader:
        if self._reader is None:
            self._reader = self.cluster.new_reader()
        return self._reader

    def _give_back(self, which: Any) -> None:
        for one in [one for one in self._waiting if which(one)]:
            self._waiting.remove(one)
            one.lease.release()


class SecureTransport(Transport):
    """The same with TLS: `catmqs://`."""

    scheme = "catmqs"
