"""Queues that go with their process: pidboxes, replies, events; see Transients."""

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

log = logging.getLogger("catmq.kombu")

# How long a log is read on after the last queue that it feeds has gone, s.
LINGER_S = 30.0
# Without consumers a queue goes after so long, s, if it says nothing else.
EXPIRES_S = 60.0
# A queue nobody reads holds no more messages than these; the oldest go first.
MOST_HELD = 10_000


class Log(Protocol):
    """The log of an exchange; it is read from the end that it had when it was opened."""

    def read(self) -> list[Message]:
        """Return what is new; waits for some of it for a while."""
        ...


class Held(NamedTuple):
    """A message in a queue, in the order of delivery."""

    rank: int
    number: int
    payload: messages.Payload
    message: Message


class TransientQueue:
    """A queue in the memory of a process."""

    def __init__(
        self, name: str, expires_s: float, rank: Callable[[messages.Payload], int]
    ) -> None:
        self.name, self.expires_s, self._rank = name, expires_s, rank
        self.bindings: set[Binding] = set()
        self.consumers = 0
        self.unused_since = time.monotonic()
        self._held: list[Held] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, message: Message, payload: messages.Payload) -> None:
        heapq.heappush(
            self._held, Held(-self._rank(payload), next(self._numbers), payload, message)
        )
        if len(self._held) > MOST_HELD:
            self._held.remove(min(self._held, key=lambda one: one.number))
            heapq.heapify(self._held)

    def get(self) -> Held | None:
        """Return the next message that has not expired."""
        now = datetime.now(UTC)
        while self._held:
            held = heapq.heappop(self._held)
            if not messages.is_expired(held.payload, held.message.stored_at_ms, now):
                return held
        return None

    def give_back(self, held: Held) -> None:
        heapq.heappush(self._held, held)

    def purge(self) -> int:
        count, self._held = len(self._held), []
        return count

    def is_over(self) -> bool:
        return not self.consumers and time.monotonic() - self.unused_since > self.expires_s


class Transients:
    """The transient queues of a process, and a thread for each exchange that one of them is
    bound to.

    They have no tables: such an exchange has a log, which whoever is bound to it reads from
    the time of the binding on. So a broadcast is stored once, and nobody has to be asked
    who listens.
    """

    def __init__(
        self, open_log: Callable[[str], Log], rank: Callable[[messages.Payload], int]
    ) -> None:
        """`open_log(exchange)`: its log, to be read from its present end on. `rank`: of the
        next first.
        """
        self._open_log, self._rank = open_log, rank
        self._queues: dict[str, TransientQueue] = {}
        self._kinds: dict[str, str] = {}
        self._readers: dict[str, object] = {}
        self._idle_since: dict[str, float] = {}
        # Called when a message has come.
        self._listeners: dict[object, Callable[[], object]] = {}
        self._lock = threading.RLock()

    def has(self, name: str) -> bool:
        return name in self._queues

    def declare(self, name: str, *, expires_s: float | None) -> None:
        """Make a queue, which is bound to the default exchange, unless it is there."""
        with self._lock:
            self._evict()
            if name not in self._queues:
                queue = TransientQueue(
                    name, EXPIRES_S if expires_s is None else expires_s, self._rank
                )
                self._queues[name] = queue
            self._queues[name].unused_since = time.monotonic()

    def bind(self, binding: Binding, kind: str) -> None:
        """Feed a queue from an exchange of a type, with what is sent from now on."""
        with self._lock:
            self._kinds[binding.exchange] = kind
            if binding.exchange not in self._readers:
                self._start(binding.exchange)
            self._queues[binding.queue].bindings.add(binding)

    def unbind(self, binding: Binding) -> None:
        with self._lock:
            if (queue := self._queues.get(binding.queue)) is not None:
                queue.bindings.discard(binding)

    def delete(self, name: str) -> int:
        """Remove a queue; return how many messages it had."""
        with self._lock:
            queue = self._queues.pop(name, None)
            return len(queue) if queue is not None else 0

    def clear(self) -> None:
        """Remove all queues; the threads end."""
        with self._lock:
            self._queues.clear()
            self._readers.clear()

    def size(self, name: str) -> int:
        return len(self._queues[name]) if name in self._queues else 0

    def purge(self, name: str) -> int:
        with self._lock:
            return self._queues[name].purge() if name in self._queues else 0

    def get(self, name: str) -> Held | None:
        """Return the next message of a queue, None if there is none now."""
        with self._lock:
            queue = self._queues.get(name)
            return None if queue is None else queue.get()

    def give_back(self, name: str, held: Held) -> None:
        with self._lock:
            if (queue := self._queues.get(name)) is not None:
                queue.give_back(held)

    def consume(self, name: str, by: int) -> None:
        """Count a consumer more or less; one fewer than one ends the queue, as auto_delete
        says.
        """
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                return
            queue.consumers += by
            queue.unused_since = time.monotonic()
            if by < 0 and queue.consumers <= 0:
                self.delete(name)

    def listen(self, who: object, call: Callable[[], object] | None) -> None:
        """Call this when a message has come; None: no more."""
        with self._lock:
            if call is None:
                self._listeners.pop(who, None)
            else:
                self._listeners[who] = call

    def _start(self, exchange: str) -> None:
        source, mark = self._open_log(exchange), object()
        self._readers[exchange] = mark
        thread = threading.Thread(
            target=self._follow, args=(exchange, source, mark), daemon=True
        )
        thread.name = "catmq-log"
        thread.start()

    def _follow(self, exchange: str, source: Log, mark: object) -> None:
        backoff = Backoff(max_ms=2_000)
        self._idle_since[exchange] = time.monotonic()
        while self._readers.get(exchange) is mark:
            try:
                self._step(exchange, source, mark)
                backoff.reset()
            except NotFound as error:
                log.warning(
                    "the log of exchange %r is gone, and is made anew: %s", exchange, error
                )
                source = self._opened_again(exchange, source)
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

    def _step(self, exchange: str, source: Log, mark: object) -> None:
        new = source.read()
        if new and self._readers.get(exchange) is mark:
            self._distribute(exchange, new)
        with self._lock:
            self._evict()
            now = time.monotonic()
            if self._is_wanted(exchange):
                self._idle_since[exchange] = now
            elif (
                now - self._idle_since[exchange] > LINGER_S
                and self._readers.get(exchange) is mark
            ):
                del self._readers[exchange]

    def _opened_again(self, exchange: str, source: Log) -> Log:
        try:
            return self._open_log(exchange)
        except CatmqError as error:
            log.warning("the log of exchange %r: %s", exchange, error)
            return source

    def _is_wanted(self, exchange: str) -> bool:
        return any(
            one.exchange == exchange
            for queue in self._queues.values()
            for one in queue.bindings
        )

    def _evict(self) -> None:
        for name in [queue.name for queue in self._queues.values() if queue.is_over()]:
            self.delete(name)

    def _distribute(self, exchange: str, new: list[Message]) -> None:
        with self._lock:
            brought = [self._put(exchange, message) for message in new]
            listeners = [*self._listeners.values()] if any(brought) else []
        for call in listeners:
            call()

    def _put(self, exchange: str, message: Message) -> bool:
        try:
            payload: dict[str, Any] = messages.decoded(message.body)
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
        found = [
            queue
            for queue in self._queues.values()
            if any(
                one.exchange == exchange and is_match(kind, one.key, key)
                for one in queue.bindings
            )
        ]
        for queue in found:
            queue.put(message, messages.decoded(message.body))
        return bool(found)
