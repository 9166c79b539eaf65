"""Messages that wait to be sent, in lanes: one for each queue, and kind of belonging to it.

A lane has at most one batch under way, so the messages of a key are stored in the order of their
sends, retries included; lanes go in parallel. A batch is ready when it is full, when its linger
time is over, when somebody waits for it, or when the lane was busy in between. Nothing here knows
of the network: senders `take` a batch and say with `finished` or `put_back` how it went.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from catmq_client.errors import BufferFull, CatmqError, Closed
from catmq_client.http.backoff import Backoff
from catmq_client.options import ProducerOptions
from catmq_client.sending.callbacks import Callbacks
from catmq_client.sending.receipts import Batch, SendFuture, size_of
from catmq_client.sending.routing import Kind, Layout, Routes, slot_of


class Lane:
    """The batches of one queue and kind, oldest first."""

    __slots__ = ("backoff", "batches", "current", "held", "kind", "not_before", "queue", "routes", "topic")

    def __init__(self, routes: Routes, queue: int | None, kind: Kind, backoff: Backoff) -> None:
        self.routes = routes
        self.topic = routes.layout.topic
        self.queue = queue
        self.kind = kind
        self.batches: deque[Batch] = deque()
        self.current: Batch | None = None
        self.not_before = 0.0
        self.backoff = backoff
        # Slots that the layout gave to another queue while messages of theirs had to stay here.
        self.held: set[int] = set()


class SendBuffer:
    """The bounded buffer of a producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._linger_s = options.linger_ms / 1000
        self._timeout_s = options.delivery_timeout_ms / 1000
        self._lanes: dict[tuple[str, int | None, Kind], Lane] = {}
        # One lock; two conditions on it, so that a sender's end does not wake other senders.
        self.lock = threading.RLock()
        self._work = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._messages = 0
        self._bytes = 0
        self._closed = False
        self.callbacks = Callbacks(self._room)
        # Senders that wait for work, and what to call when somebody waits for room.
        self.idle = 0
        self.on_full: Callable[[], object] = lambda: None

    def append(
        self,
        routes: Routes,
        message: dict[str, Any],
        *,
        strict_queue: bool = True,
        urgent: bool = False,
        block_s: float = 0.0,
    ) -> tuple[SendFuture, Lane]:
        """Takes a message in, `queue` in it being the one its sender named.

        urgent: ready at once, and its sender will try to deliver it itself.
        Waits up to `block_s` for room; raises BufferFull, Closed, or OptionError for a foreign queue.
        """
        size = size_of(message)
        with self.lock:
            self._make_room(size, block_s)
            lane = self._route(routes, message, strict_queue)
            batch = self._open_batch(lane, size)
            future = self._add(batch, message, size)
            self._after_append(lane, batch, urgent=urgent)
        return future, lane

    def append_all(
        self, routes: Routes, messages: Sequence[dict[str, Any]], *, block_s: float
    ) -> tuple[Sequence[SendFuture | CatmqError], set[Lane], tuple[SendFuture, Lane] | None]:
        """Takes in messages that go at once: the future of each or why it was not taken; all lanes; the last.

        What was taken in goes, so a message that is not is told at its place. Behind one that found no room
        none is taken in: it would overtake. Their sender will try to deliver the last lane itself, so others
        are woken only for other lanes.
        """
        sent: list[SendFuture | CatmqError] = []
        lanes: set[Lane] = set()
        last: tuple[SendFuture, Lane] | None = None
        full: BufferFull | None = None
        with self.lock:
            together = self._append_together(routes, messages)
            if together is not None:
                futures, lane = together
                return futures, {lane}, (futures[-1], lane)
            for message in messages:
                if full is not None:
                    sent.append(full)
                    continue
                try:
                    last = self._append_one(routes, message, last, block_s)
                    lanes.add(last[1])
                    sent.append(last[0])
                except BufferFull as error:
                    full = error
                    sent.append(error)
                except CatmqError as error:
                    sent.append(error)
            if len(lanes) > 1:
                self._work.notify_all()
        return sent, lanes, last

    def take(self, *, wait_s: float = 0.0, only: Lane | None = None) -> tuple[Lane, Batch] | None:
        """The oldest batch that is ready, and its lane; waits up to `wait_s`. `only` looks at one lane."""
        give_up_at = time.monotonic() + wait_s
        with self.lock:
            while True:
                now = time.monotonic()
                lane, ready_at = self._first_ready((only,) if only else self._lanes.values())
                if lane is not None and ready_at <= now:
                    return self._start(lane)
                if now >= give_up_at or (self._closed and not self._messages):
                    return None
                self.idle += 1
                self._work.wait(min(ready_at, give_up_at) - now)
                self.idle -= 1

    def hand_over(self, lane: Lane) -> None:
        """Makes an idle sender look again if the lane is free and not ready: it may sleep for longer."""
        with self.lock:
            if lane.current is None:
                self._work.notify()

    def finished(self, lane: Lane, batch: Batch) -> None:
        """Ends a batch: its lane is free for the next one."""
        with self.lock:
            lane.current = None
            lane.backoff.reset()
            lane.not_before = 0.0
            self._free(batch)
            self._let_follow(lane)
            if lane.batches:
                self._work.notify()

    def put_back(
        self, lane: Lane, batches: Iterable[Batch], *, delay_s: float, ended: Batch | None = None
    ) -> None:
        """Puts batches in front of the lane again, to be tried in `delay_s`; those of `ended` are over."""
        with self.lock:
            lane.batches.extendleft(reversed(list(batches)))
            lane.current = None
            lane.not_before = time.monotonic() + delay_s
            if ended is not None:
                self._free(ended)
            self._let_follow(lane)
            self._work.notify()

    def relayout(self, routes: Routes, layout: Layout, *, refused: tuple[Lane, Batch] | None = None) -> None:
        """Follows a newer layout: keyed messages go to their slot's new queue, in their order.

        `refused` is a batch under way whose queue refused it definitely; it goes first. Where a batch
        is under way, or may be stored, the lane stays until that has ended, and later messages of its
        keys queue up behind: otherwise they could be stored before it.
        """
        with self.lock:
            if layout is not routes.layout:
                routes.replace(layout)
            if refused is not None:
                refused[0].batches.appendleft(refused[1])
                refused[0].current = None
            for lane in [*self._lanes.values()]:
                if lane.topic == layout.topic and lane.kind == Kind.KEYED:
                    self._follow(lane, staying=lane.current is not None or _may_be_stored(lane))
            self._work.notify_all()

    def _follow(self, lane: Lane, *, staying: bool) -> None:
        """Moves a lane's messages to where the layout has their slots, or holds those slots here."""
        routes = lane.routes
        for slot in lane.held:
            routes.held.pop(slot, None)
        lane.held = set()
        batches = [batch for batch in (lane.current, *lane.batches) if batch]
        slots = {slot_of(message["key"]) for batch in batches for message in batch.messages}
        away = {slot for slot in slots if routes.layout.slots and routes.layout.slots[slot] != lane.queue}
        if staying:
            lane.held = away
            routes.held.update(dict.fromkeys(away, lane.queue or 0))
        elif away:
            lane.batches = deque()
            for batch in batches:
                self._append_again(routes, batch)

    def _let_follow(self, lane: Lane) -> None:
        if lane.held and not _may_be_stored(lane):
            self._follow(lane, staying=False)

    def hurry_all(self) -> list[SendFuture]:
        """Makes everything ready at once; the futures of all that is waiting or under way."""
        with self.lock:
            for batch in self._batches():
                batch.urgent = True
            self._work.notify_all()
            return self._under_way() + self.callbacks.waiting()

    def await_callbacks(self, futures: Collection[SendFuture], timeout_s: float | None) -> bool:
        """Waits until the callbacks of sends that end have returned, too; whether they have."""
        return self.callbacks.await_returned(futures, timeout_s, under_way=self._under_way)

    def close(self) -> None:
        """Refuses further messages and lets senders go when nothing is left."""
        with self.lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()

    def _batches(self) -> list[Batch]:
        """Return what is waiting or under way."""
        return [b for lane in self._lanes.values() for b in (lane.current, *lane.batches) if b]

    def _under_way(self) -> list[SendFuture]:
        return [future for batch in self._batches() for future in batch.futures]

    def needs_sender(self) -> bool:
        """Return True if a batch is waiting or lingering and no sender is idle."""
        with self.lock:
            return self.idle == 0 and self._first_ready(self._lanes.values())[0] is not None

    def _append_together(
        self, routes: Routes, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[SendFuture], Lane] | None:
        """Takes in messages that name the same queue and make one batch, for a third of the work; None: they
        are not such."""
        options, size = self._options, sum(map(size_of, messages))
        queues = {message.get("queue") for message in messages}
        fit = len(messages) <= options.batch_messages and size <= options.batch_bytes
        if self._closed or not fit or len(queues) != 1 or self._is_full(size, count=len(messages)):
            return None
        (queue,) = queues
        lane = self._lanes.get((routes.layout.topic, queue, Kind.NAMED))
        if lane is None or queue not in routes.layout.nodes:  # names none, or goes there for the first time
            return None
        batch = lane.batches[-1] if lane.batches else None
        if batch is None or not self._holds(batch, len(messages), size):
            batch = self._new_batch(lane)
        batch.urgent = True
        self._messages += len(messages)
        self._bytes += size
        return batch.add_all(messages, size), lane

    def _append_one(
        self, routes: Routes, message: dict[str, Any], before: tuple[SendFuture, Lane] | None, block_s: float
    ) -> tuple[SendFuture, Lane]:
        """Takes in one of many; mostly it goes where the one before it went."""
        size = size_of(message)
        if self._closed or self._is_full(size):
            self._make_room(size, block_s)
        lane = before[1] if before is not None else None
        if lane is None or lane.kind is not Kind.NAMED or message.get("queue") != lane.queue:
            lane = self._route(routes, message, strict_queue=True)
        batch = self._open_batch(lane, size)
        future = self._add(batch, message, size)
        batch.urgent = True
        if lane.kind is Kind.FREE and len(batch.messages) >= self._options.batch_messages:
            lane.routes.next_queue(after=lane.queue)
        return future, lane

    def _make_room(self, size: int, block_s: float) -> None:
        if self._closed:
            raise Closed("the producer is closed")
        if self._is_full(size):
            self._wait_for_room(size, block_s)

    def _route(self, routes: Routes, message: dict[str, Any], strict_queue: bool) -> Lane:
        """The lane of a message, which then names the queue it goes to."""
        queue, kind = routes.choose(
            key=message.get("key"), queue=message.get("queue"), strict_queue=strict_queue
        )
        if queue is not None:
            message["queue"] = queue
        return self._lane(routes, queue, kind)

    def _add(self, batch: Batch, message: dict[str, Any], size: int) -> SendFuture:
        self._messages += 1
        self._bytes += size
        return batch.add(message, size)

    def _lane(self, routes: Routes, queue: int | None, kind: Kind) -> Lane:
        key = (routes.layout.topic, queue, kind)
        lane = self._lanes.get(key)
        if lane is None:
            options = self._options
            backoff = Backoff(base_ms=options.retry_backoff_ms, max_ms=options.retry_backoff_max_ms)
            lane = self._lanes[key] = Lane(routes, queue, kind, backoff)
        return lane

    def _open_batch(self, lane: Lane, size: int) -> Batch:
        if lane.batches and self._holds(lane.batches[-1], 1, size):
            return lane.batches[-1]
        return self._new_batch(lane)

    def _holds(self, batch: Batch, count: int, size: int) -> bool:
        """Return True if `count` more messages of `size` bytes fit; once tried, a batch is sent as it is."""
        options = self._options
        fits = (
            len(batch.messages) + count <= options.batch_messages
            and batch.size_bytes + size <= options.batch_bytes
        )
        return fits and not batch.tries

    def _new_batch(self, lane: Lane) -> Batch:
        batch = Batch(topic=lane.topic, queue=lane.queue, linger_s=self._linger_s, timeout_s=self._timeout_s)
        lane.batches.append(batch)
        return batch

    def _after_append(self, lane: Lane, batch: Batch, *, urgent: bool) -> None:
        full = len(batch.messages) >= self._options.batch_messages
        if full and lane.kind == Kind.FREE:
            lane.routes.next_queue(after=lane.queue)
        if urgent:
            batch.urgent = True
        elif lane.current is None and (full or len(batch.messages) == 1):
            self._work.notify()

    def _append_again(self, routes: Routes, batch: Batch) -> None:
        for message, future in zip(batch.messages, batch.futures, strict=True):
            queue, kind = routes.choose(key=message.get("key"), queue=None, strict_queue=True)
            message["queue"] = queue
            lane = self._lane(routes, queue, kind)
            target = self._open_batch(lane, len(message["body_bytes"]))
            target.adopt(message, future, batch.expires_at)
            target.urgent = target.urgent or batch.urgent
        batch.let_go()

    def _first_ready(self, lanes: Iterable[Lane]) -> tuple[Lane | None, float]:
        """The lane that is ready first, and when, on the monotonic clock."""
        first, first_at = None, time.monotonic() + 3600.0
        for lane in lanes:
            if lane.current is None and lane.batches:
                at = max(lane.not_before, self._ready_at(lane))
                if at < first_at:
                    first, first_at = lane, at
        return first, first_at

    def _ready_at(self, lane: Lane) -> float:
        head = lane.batches[0]
        full = (
            len(head.messages) >= self._options.batch_messages or head.size_bytes >= self._options.batch_bytes
        )
        ready_now = full or head.urgent or head.tries or self._closed or len(lane.batches) > 1
        # The time it was made, so that of the ready ones the oldest goes first.
        return head.created_at if ready_now else head.lingers_until

    def _start(self, lane: Lane) -> tuple[Lane, Batch]:
        batch = lane.current = lane.batches.popleft()
        if lane.kind == Kind.FREE:
            lane.routes.next_queue(after=lane.queue)
        return lane, batch

    def _is_full(self, size: int, *, count: int = 1) -> bool:
        # A message alone goes, however large it is.
        over = self._bytes + size > self._options.buffer_bytes and self._messages + count > 1
        return over or self._messages + count > self._options.buffer_messages

    def _wait_for_room(self, size: int, block_s: float) -> None:
        self._work.notify_all()
        self.on_full()
        if not self._room.wait_for(lambda: self._closed or not self._is_full(size), block_s):
            raise BufferFull(f"no room for {block_s:g} s: {self._messages} messages wait to be confirmed")
        if self._closed:
            raise Closed("the producer was closed while a send waited for room")

    def _free(self, batch: Batch) -> None:
        self._messages -= len(batch.futures)
        self._bytes -= batch.size_bytes
        self.callbacks.note(batch)
        self._room.notify_all()
        if self._closed and not self._messages:
            self._work.notify_all()


def _may_be_stored(lane: Lane) -> bool:
    """Return True if a batch waits here whose last try ended without our knowing."""
    return any(batch.unknown for batch in lane.batches)
