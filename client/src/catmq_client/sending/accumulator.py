"""Messages that wait to be sent, in a buffer for each queue and kind of belonging to it.

After Kafka's RecordAccumulator: applications append, senders take. A buffer has at most one
batch under way, so the messages of a key are stored in the order of their sends, retries
included; buffers go in parallel. A batch is ready when it is full, when its linger time is
over, when somebody waits for it, or when its buffer was busy in between. Nothing here knows
of the network: senders `take` a batch and say with
`finished` or
`put_back` how it went.
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
from catmq_client.sending.receipts import Batch, Callbacks, SendFuture, size_of
from catmq_client.sending.routing import Kind, Layout, Routes, slot_of


class QueueBuffer:
    """The batches of one queue and kind, oldest first. Not locked."""

    __slots__ = (
        "backoff",
        "batches",
        "current",
        "held",
        "kind",
        "last_error",
        "not_before",
        "options",
        "queue",
        "routes",
        "taken_by",
    )

    def __init__(
        self, routes: Routes, queue: int | None, kind: Kind, options: ProducerOptions
    ) -> None:
        self.routes = routes
        self.queue = queue
        self.kind = kind
        self.options = options
        self.batches: deque[Batch] = deque()
        self.current: Batch | None = None
        # The thread that took `current`.
        self.taken_by = 0
        self.not_before = 0.0
        # How the last try of a batch of this buffer failed; "" after one that succeeded.
        self.last_error = ""
        self.backoff = Backoff(
            base_ms=options.retry_backoff_ms, max_ms=options.retry_backoff_max_ms
        )
        # Slots that the layout gave to another queue while messages of theirs had to stay
        # here.
        self.held: set[int] = set()

    def open_batch(self, size: int, *, count: int = 1) -> Batch:
        """The batch that takes `count` more messages of `size` bytes; once tried, one is
        sent as it is.
        """
        options = self.options
        if self.batches:
            last = self.batches[-1]
            fits = len(last.messages) + count <= options.batch_messages
            if fits and last.size_bytes + size <= options.batch_bytes and not last.tries:
                return last
        batch = Batch(
            topic=self.routes.layout.topic,
            queue=self.queue,
            linger_s=options.linger_ms / 1000,
            timeout_s=options.delivery_timeout_ms / 1000,
        )
        self.batches.append(batch)
        return batch

    def ready_at(self, *, hurry: bool) -> float:
        """Monotonic time at which the oldest batch may be sent; that at which it was made
        if it is ready.
        """
        first, options = self.batches[0], self.options
        full = (
            len(first.messages) >= options.batch_messages
            or first.size_bytes >= options.batch_bytes
        )
        ready_now = full or first.urgent or first.tries or hurry or len(self.batches) > 1
        # Of the ready ones the oldest goes first.
        return max(self.not_before, first.created_at if ready_now else first.lingers_until)

    def leave_sticky_queue(self) -> None:
        """Unkeyed messages go to another queue: this one's batch is full or on its way."""
        if self.kind is Kind.FREE:
            self.routes.next_queue(after=self.queue)

    def may_be_stored(self) -> bool:
        """Return True if a batch waits here whose last try ended without our knowing."""
        return any(batch.unknown for batch in self.batches)

    def all_batches(self) -> list[Batch]:
        """Those waiting and the one under way."""
        return [batch for batch in (self.current, *self.batches) if batch]


class Accumulator:
    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._buffers: dict[tuple[str, int | None, Kind], QueueBuffer] = {}
        # One lock; two conditions on it, so that a sender's end does not wake other
        # senders.
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

    # Append: what applications call.

    def append(
        self,
        routes: Routes,
        message: dict[str, Any],
        *,
        urgent: bool = False,
        block_s: float = 0.0,
    ) -> tuple[SendFuture, QueueBuffer]:
        """Take a message in, `queue` in it being the one its sender named, strictly or as a
        wish.

        urgent: ready at once, and its sender will try to deliver it itself.
        Waits up to `block_s` for room; raises BufferFull, Closed, or OptionError for a
        foreign queue.
        """
        size = size_of(message)
        with self.lock:
            self._make_room(size, block_s)
            buffer = self._route(routes, message)
            future, batch = self._add(buffer, message, size)
            if urgent:
                batch.urgent = True
            elif buffer.current is None and len(batch.messages) in (
                1,
                self._options.batch_messages,
            ):
                self._work.notify()
        return future, buffer

    def append_all(
        self, routes: Routes, messages: Sequence[dict[str, Any]], *, block_s: float
    ) -> tuple[
        Sequence[SendFuture | CatmqError],
        set[QueueBuffer],
        tuple[SendFuture, QueueBuffer] | None,
    ]:
        """Take in messages that go at once: the future of each or its refusal, all buffers,
        the last.

        What was taken in goes, so a message that is not is told at its place. Behind one
        that found no room none is taken in: it would overtake. Their sender will try to
        deliver the last buffer itself, so others are woken only for other buffers.
        """
        sent: list[SendFuture | CatmqError] = []
        buffers: set[QueueBuffer] = set()
        last: tuple[SendFuture, QueueBuffer] | None = None
        full: BufferFull | None = None
        with self.lock:
            together = self._append_together(routes, messages)
            if together is not None:
                futures, buffer = together
                return futures, {buffer}, (futures[-1], buffer)
            for message in messages:
                if full is not None:
                    sent.append(full)
                    continue
                try:
                    last = self._append_one(routes, message, last, block_s)
                    buffers.add(last[1])
                    sent.append(last[0])
                except CatmqError as error:
                    full = error if isinstance(error, BufferFull) else None
                    sent.append(error)
            if len(buffers) > 1:
                self._work.notify_all()
        return sent, buffers, last

    def _append_together(
        self, routes: Routes, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[SendFuture], QueueBuffer] | None:
        """Take in messages that name the same queue and make one batch, for a third of the
        work; None: they are not such."""
        options, size = self._options, sum(map(size_of, messages))
        queues = {
            message.get("queue") if "queue_strict" not in message else None
            for message in messages
        }
        fit = len(messages) <= options.batch_messages and size <= options.batch_bytes
        if (
            self._closed
            or not fit
            or len(queues) != 1
            or self._is_full(size, count=len(messages))
        ):
            return None
        (queue,) = queues
        buffer = self._buffers.get((routes.layout.topic, queue, Kind.NAMED))
        # names none, or goes there for the first time
        if buffer is None or queue not in routes.layout.nodes:
            return None
        batch = buffer.open_batch(size, count=len(messages))
        batch.urgent = True
        self._messages += len(messages)
        self._bytes += size
        return batch.add_all(messages, size), buffer

    def _append_one(
        self,
        routes: Routes,
        message: dict[str, Any],
        before: tuple[SendFuture, QueueBuffer] | None,
        block_s: float,
    ) -> tuple[SendFuture, QueueBuffer]:
        """Take in one of many; mostly it goes where the one before it went."""
        size = size_of(message)
        if self._closed or self._is_full(size):
            self._make_room(size, block_s)
        buffer = before[1] if before is not None else None
        named = (
            buffer is not None
            and buffer.kind is Kind.NAMED
            and "queue_strict" not in message
        )
        if buffer is None or not named or message.get("queue") != buffer.queue:
            buffer = self._route(routes, message)
        future, batch = self._add(buffer, message, size)
        batch.urgent = True
        return future, buffer

    def _route(self, routes: Routes, message: dict[str, Any]) -> QueueBuffer:
        """The buffer of a message, which then names the queue it goes to."""
        strict = message.get("queue_strict", True)
        queue, kind = routes.choose(
            key=message.get("key"), queue=message.get("queue"), strict_queue=strict
        )
        if not strict and routes.layout.slots:
            # another queue is chosen here; without a layout, by the broker
            del message["queue_strict"]
        if queue is not None:
            message["queue"] = queue
        key = (routes.layout.topic, queue, kind)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = QueueBuffer(routes, queue, kind, self._options)
        return buffer

    def _add(
        self, buffer: QueueBuffer, message: dict[str, Any], size: int
    ) -> tuple[SendFuture, Batch]:
        batch = buffer.open_batch(size)
        self._messages += 1
        self._bytes += size
        future = batch.add(message, size)
        if len(batch.messages) >= self._options.batch_messages:
            buffer.leave_sticky_queue()
        return future, batch

    def _make_room(self, size: int, block_s: float) -> None:
        if self._closed:
            raise Closed("the producer is closed")
        if not self._is_full(size):
            return
        self._recount()
        self._work.notify_all()
        self.on_full()
        if not self._room.wait_for(
            lambda: self._closed or not self._is_full(size), block_s
        ):
            raise BufferFull(
                f"no room for {block_s:g} s: {self._messages} messages are unconfirmed"
            )
        if self._closed:
            raise Closed("the producer was closed while a send waited for room")

    def _recount(self) -> None:
        """Count again what is buffered: an interrupted thread may have left a change half
        done.
        """
        self._messages = sum(len(batch.futures) for batch in self._batches())
        self._bytes = sum(batch.size_bytes for batch in self._batches())

    def _is_full(self, size: int, *, count: int = 1) -> bool:
        # A message alone goes, however large it is.
        over = (
            self._bytes + size > self._options.buffer_bytes and self._messages + count > 1
        )
        return over or self._messages + count > self._options.buffer_messages

    # Take: what senders call.

    def take(
        self, *, wait_s: float = 0.0, only: QueueBuffer | None = None
    ) -> tuple[QueueBuffer, Batch] | None:
        """The oldest ready batch and its buffer; waits up to `wait_s`. `only` looks at one
        buffer.
        """
        give_up_at = time.monotonic() + wait_s
        with self.lock:
            while True:
                now = time.monotonic()
                buffer, ready_at = self._first_ready(
                    (only,) if only else self._buffers.values()
                )
                if buffer is not None and ready_at <= now:
                    # In this order: a thread that is interrupted between two of them finds
                    # what it
                    # holds.
                    buffer.taken_by = threading.get_ident()
                    batch = buffer.current = buffer.batches[0]
                    buffer.batches.popleft()
                    batch.mend()
                    buffer.leave_sticky_queue()
                    return buffer, batch
                if now >= give_up_at or (self._closed and not self._messages):
                    return None
                self.idle += 1
                self._work.wait(min(ready_at, give_up_at) - now)
                self.idle -= 1

    def _first_ready(
        self, buffers: Iterable[QueueBuffer]
    ) -> tuple[QueueBuffer | None, float]:
        """The buffer that is ready first, and when, on the monotonic clock."""
        first, first_at = None, time.monotonic() + 3600.0
        for buffer in buffers:
            if buffer.current is None and buffer.batches:
                at = buffer.ready_at(hurry=self._closed)
                if at < first_at:
                    first, first_at = buffer, at
        return first, first_at

    def needs_sender(self) -> bool:
        """Return True if a batch is waiting or lingering and no sender is idle."""
        with self.lock:
            return (
                self.idle == 0 and self._first_ready(self._buffers.values())[0] is not None
            )

    def hand_over(self, buffer: QueueBuffer) -> None:
        """Make an idle sender look again if the buffer is free and not ready: it may sleep
        for longer.
        """
        with self.lock:
            if buffer.current is None:
                self._work.notify()

    def abandon(
        self, buffer: QueueBuffer, own: Collection[SendFuture], error: CatmqError
    ) -> None:
        """Let go of a batch that this thread took, because an exception was raised into the
        thread.

        Messages of others are sent by others. The caller's `own` ones end with `error`,
        unless they travel with those of others in a batch that may be stored: that is
        repeated whole, under its batch_id.
        """
        with self.lock:
            self._recount()
            batch = buffer.current
            if batch is None or buffer.taken_by != threading.get_ident():
                return
            if batch in buffer.batches:  # interrupted while it was taken or put back
                self.put_back(buffer, [], delay_s=0.0)
                return
            ends = {future.ended for future in batch.futures}
            of_others = [i for i, future in enumerate(batch.futures) if future not in own]
            if not of_others:
                batch.fail(error)
                self.finished(buffer, batch)
            elif batch.tries:
                self.put_back(buffer, [batch.repeated()], delay_s=0.0)
            else:
                ended = batch.part(
                    [i for i, future in enumerate(batch.futures) if future in own]
                )
                ended.fail(error)
                self.put_back(buffer, [batch.part(of_others)], delay_s=0.0, ended=ended)
            # Wake who waits: the messages travel in other batches now.
            for end in ends:
                end.set()

    def finished(self, buffer: QueueBuffer, batch: Batch) -> None:
        """End a batch: its buffer is free for the next one."""
        with self.lock:
            buffer.current = None
            buffer.backoff.reset()
            buffer.not_before = 0.0
            self._free(batch)
            self._let_follow(buffer)
            if buffer.batches:
                self._work.notify()

    def put_back(
        self,
        buffer: QueueBuffer,
        batches: Sequence[Batch],
        *,
        delay_s: float,
        ended: Batch | None = None,
    ) -> None:
        """Put batches in front again, to be tried in `delay_s`; those of `ended` are over."""
        with self.lock:
            buffer.batches.extendleft(reversed(batches))
            buffer.current = None
            buffer.not_before = time.monotonic() + delay_s
            if ended is not None:
                self._free(ended)
            self._let_follow(buffer)
            self._work.notify()

    def _free(self, batch: Batch) -> None:
        self._messages -= len(batch.futures)
        self._bytes -= batch.size_bytes
        self.callbacks.note(batch)
        self._room.notify_all()
        if self._closed and not self._messages:
            self._work.notify_all()

    def relayout(
        self,
        routes: Routes,
        layout: Layout,
        *,
        refused: tuple[QueueBuffer, Batch] | None = None,
    ) -> None:
        """Follow a newer layout: keyed messages go to their slot's new queue, in their
        order.

        `refused` is a batch under way whose queue refused it definitely; it goes first.
        Where a batch is under way, or may be stored, the buffer stays until that has ended,
        and later messages of its keys queue up behind: otherwise they could be stored
        before it.
        """
        with self.lock:
            if layout is not routes.layout:
                routes.replace(layout)
            if refused is not None:
                refused[0].batches.appendleft(refused[1])
                refused[0].current = None
            for buffer in [*self._buffers.values()]:
                if buffer.routes is routes and buffer.kind == Kind.KEYED:
                    self._follow(
                        buffer, staying=buffer.current is not None or buffer.may_be_stored()
                    )
            self._work.notify_all()

    def _let_follow(self, buffer: QueueBuffer) -> None:
        if buffer.held and not buffer.may_be_stored():
            self._follow(buffer, staying=False)

    def _follow(self, buffer: QueueBuffer, *, staying: bool) -> None:
        """Move a buffer's messages to where the layout has their slots, or hold those slots
        here.
        """
        routes = buffer.routes
        for slot in buffer.held:
            routes.held.pop(slot, None)
        buffer.held = set()
        batches = buffer.all_batches()
        slots = {slot_of(message["key"]) for batch in batches for message in batch.messages}
        away = {
            slot
            for slot in slots
            if routes.layout.slots and routes.layout.slots[slot] != buffer.queue
        }
        if staying:
            buffer.held = away
            routes.held.update(dict.fromkeys(away, buffer.queue or 0))
        elif away:
            buffer.batches = deque()
            for batch in batches:
                self._move(routes, batch)

    def _move(self, routes: Routes, batch: Batch) -> None:
        for message, future in zip(batch.messages, batch.futures, strict=True):
            message.pop("queue", None)
            target = self._route(routes, message).open_batch(size_of(message))
            target.adopt(message, future, batch.expires_at)
            target.urgent = target.urgent or batch.urgent
        batch.let_go()

    # The end.

    def hurry_all(self) -> list[SendFuture]:
        """Make everything ready at once; return the futures of all that is waiting or under
        way.
        """
        with self.lock:
            for batch in self._batches():
                batch.urgent = True
            self._work.notify_all()
            return self._under_way() + self.callbacks.waiting()

    def await_callbacks(
        self, futures: Collection[SendFuture], timeout_s: float | None
    ) -> bool:
        """Wait until the callbacks of sends that end have returned, too; return True if
        they have.
        """
        return self.callbacks.await_returned(futures, timeout_s, under_way=self._under_way)

    def close(self) -> None:
        """Refuse further messages and let senders go when nothing is left."""
        with self.lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()

    def _batches(self) -> list[Batch]:
        return [
            batch for buffer in self._buffers.values() for batch in buffer.all_batches()
        ]

    def _under_way(self) -> list[SendFuture]:
        return [future for batch in self._batches() for future in batch.futures]
