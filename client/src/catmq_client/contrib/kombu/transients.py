"""Transient queues, in the memory of a process: for replies, events and remote control."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.registry import Binding, is_match
from catmq_client.errors import CatmqError, NotFound
from catmq_client.http.backoff import Backoff
from catmq_client.message import Message

log: logging.Logger = logging.getLogger("catmq.kombu")

# A log is read for this long after its last queue was deleted, so that a new queue, such as
# that of the next reply, need not open it again.
LINGER_S = 30.0
# A queue without consumers is deleted after this time, unless it has x-expires.
EXPIRES_S = 60.0
# Limit of the messages in a queue that nobody reads. The oldest are dropped.
MAX_MESSAGES = 10_000


class Log(Protocol):
    """The log of an exchange. Reading begins at the end that it had when it was opened."""

    def read(self) -> list[Message]:
        """Return new messages. May wait for them."""


class QueuedMessage(NamedTuple):
    """A message in a transient queue. Tuples compare in the order of delivery: by rank, then
    by number.
    """

    rank: int
    number: int
    payload: messages.Payload
    message: Message


class TransientQueue:
    """A queue in the memory of a process. `rank` returns the priority step of a message."""

    def __init__(
        self, name: str, expires_s: float, rank: Callable[[messages.Payload], int]
    ) -> None:
        self.name: str = name
        self.expires_s: float = expires_s
        self._rank = rank
        self.bindings: set[Binding] = set()
        self.consumers = 0
        self.unused_since: float = time.monotonic()
        # A heap.
        self._messages: list[QueuedMessage] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message, payload: messages.Payload) -> None:
        heapq.heappush(
            self._messages,
            QueuedMessage(-self._rank(payload), next(self._numbers), payload, message),
        )
        if len(self._messages) > MAX_MESSAGES:
            self._messages.remove(min(self._messages, key=lambda queued: queued.number))
            heapq.heapify(self._messages)

    def get(self) -> QueuedMessage | None:
        """Remove and return the next message that has not expired; None if there is none."""
        now = datetime.now(UTC)
        while self._messages:
            queued = heapq.heappop(self._messages)
            if not messages.is_expired(queued.payload, queued.message.stored_at_ms, now):
                return queued
        return None

    def purge(self) -> int:
        count, self._messages = len(self._messages), []
        return count

    def is_expired(self) -> bool:
        return not self.consumers and time.monotonic() - self.unused_since > self.expires_s


class TransientQueues:
    """The transient queues of a process, and a reader thread for each exchange to which one of
    them is bound.

    Messages of such an exchange are written to a log. Each process with a bound queue reads
    the log from the time of the binding on. So a broadcast is stored once, and the sender
    need not know the queues.
    """

    def __init__(
        self, open_log: Callable[[str], Log], rank: Callable[[messages.Payload], int]
    ) -> None:
        """`open_log(exchange)` opens its log at the current end. `rank(payload)` is higher for
        messages that are delivered first.
        """
        self._open_log, self._rank = open_log, rank
        self._queues: dict[str, TransientQueue] = {}
        # By exchange: its type; the token of its reader thread; when it last had a binding.
        self._kinds: dict[str, str] = {}
        self._readers: dict[str, object] = {}
        self._idle_since: dict[str, float] = {}
        # Called when a message has arrived.
        self._listeners: dict[object, Callable[[], object]] = {}
        self._lock = threading.RLock()

    def has(self, name: str) -> bool:
        return name in self._queues

    def declare(self, name: str, *, expires_s: float | None) -> None:
        """Create a queue if it is missing, and restart its expiry."""
        with self._lock:
            self._delete_expired()
            if name not in self._queues:
                self._queues[name] = TransientQueue(
                    name, EXPIRES_S if expires_s is None else expires_s, self._rank
                )
            self._queues[name].unused_since = time.monotonic()

    def bind(self, binding: Binding, kind: str) -> None:
        """Bind a queue to an exchange of the type `kind`, for messages that are sent from now
        on.
        """
        with self._lock:
            exchange = binding.exchange
            self._kinds[exchange] = kind
            # The log is open before this returns: a message that is sent afterwards arrives.
            if exchange not in self._readers:
                # The reader thread ends when its token is no longer in _readers.
                source, token = self._open_log(exchange), object()
                self._readers[exchange] = token
                threading.Thread(
                    target=self._read_log,
                    args=(exchange, source, token),
                    name="catmq-log",
                    daemon=True,
                ).start()
            self._queues[binding.queue].bindings.add(binding)

    def unbind(self, binding: Binding) -> None:
        with self._lock:
            if (queue := self._queues.get(binding.queue)) is not None:
                queue.bindings.discard(binding)

    def delete(self, name: str) -> int:
        with self._lock:
            queue = self._queues.pop(name, None)
            return len(queue) if queue is not None else 0

    def clear(self) -> None:
        """Delete all queues and end the reader threads."""
        with self._lock:
            self._queues.clear()
            self._readers.clear()

    def size(self, name: str) -> int:
        return len(self._queues[name]) if name in self._queues else 0

    def purge(self, name: str) -> int:
        with self._lock:
            return self._queues[name].purge() if name in self._queues else 0

    def get(self, name: str) -> QueuedMessage | None:
        with self._lock:
            queue = self._queues.get(name)
            return None if queue is None else queue.get()

    def count_consumer(self, name: str, change: int) -> None:
        """Add (1) or remove (-1) a consumer. Without its last consumer the queue is deleted, as
        auto_delete requires.
        """
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                return
            queue.consumers += change
            queue.unused_since = time.monotonic()
            if change < 0 and queue.consumers <= 0:
                self.delete(name)

    def set_listener(self, owner: object, callback: Callable[[], object] | None) -> None:
        """Set the owner's callback for arriving messages. None removes it."""
        with self._lock:
            if callback is None:
                self._listeners.pop(owner, None)
            else:
                self._listeners[owner] = callback

    def _read_log(self, exchange: str, source: Log, token: object) -> None:
        backoff = Backoff(max_ms=2_000)
        self._idle_since[exchange] = time.monotonic()
        while self._readers.get(exchange) is token:
            try:
                self._read_once(exchange, source, token)
                backoff.reset()
            except NotFound as error:
                log.warning(
                    "the log of exchange %r is gone, and is made anew: %s", exchange, error
                )
                try:
                    source = self._open_log(exchange)
                except CatmqError as open_error:
                    log.warning("the log of exchange %r: %s", exchange, open_error)
                time.sleep(backoff.next_s())
            except CatmqError as error:
                log.warning(
                    "reading the log of exchange %r, which is repeated: %s", exchange, error
                )
                time.sleep(backoff.next_s(error))
            except Exception:
                log.exception(
                    "internal error while reading the log of exchange %r; continuing",
                    exchange,
                )
                time.sleep(backoff.next_s())

    def _read_once(self, exchange: str, source: Log, token: object) -> None:
        """Read the log once. End the reader if the exchange has had no binding for LINGER_S."""
        new_messages = source.read()
        if new_messages and self._readers.get(exchange) is token:
            with self._lock:
                is_routed = [self._put(exchange, message) for message in new_messages]
                listeners = [*self._listeners.values()] if any(is_routed) else []
            # Outside the lock: a listener takes locks of its own.
            for callback in listeners:
                callback()
        with self._lock:
            self._delete_expired()
            now = time.monotonic()
            if any(
                binding.exchange == exchange
                for queue in self._queues.values()
                for binding in queue.bindings
            ):
                self._idle_since[exchange] = now
            elif (
                now - self._idle_since[exchange] > LINGER_S
                and self._readers.get(exchange) is token
            ):
                del self._readers[exchange]

    def _delete_expired(self) -> None:
        for name in [queue.name for queue in self._queues.values() if queue.is_expired()]:
            self.delete(name)

    def _put(self, exchange: str, message: Message) -> bool:
        try:
            payload: dict[str, Any] = messages.decode(message.body)
        except ValueError as error:
            log.error(
                "message %s in the log of %r is left out: %s",
                message.message_id,
                exchange,
                error,
            )
            return False
        key = payload["properties"]["delivery_info"].get("routing_key") or ""
        kind = self._kinds[exchange]
        targets = [
            queue
            for queue in self._queues.values()
            if any(
                binding.exchange == exchange and is_match(kind, binding.key, key)
                for binding in queue.bindings
            )
        ]
        for queue in targets:
            # Decoded again: each queue needs a payload of its own, because it is changed at
            # the delivery.
            queue.put(message, messages.decode(message.body))
        return bool(targets)
