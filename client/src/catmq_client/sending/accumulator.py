"""Messages waiting to be sent, in a buffer for each queue and kind of route.

The kind of a message (routing.Kind) says what binds it to its queue:

    FREE    nothing: it may go to another queue after a definite refusal
    KEYED   its key: it waits for the queue of the key's slot, and follows the slot if a newer
            layout moves it to another queue
    NAMED   its sender, who named the queue

The class is modelled on Kafka's RecordAccumulator: applications append, senders take. At
most 1 batch of a buffer is in flight, so messages of a key are stored in the order of their
sends, retries included. Different buffers are sent in parallel. A batch is ready when it is
full, when its linger time is over, when a caller waits for it, or when its buffer was busy
in between. This module does not use the network: senders `take` a batch and report its end
with `finish_batch` or `put_back`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catmq_client.errors import BufferFull, CatmqError, Closed
from catmq_client.http.backoff import Backoff
from catmq_client.loops import BellCondition
from catmq_client.options import ProducerOptions
from catmq_client.sending.receipts import (
    Batch,
    Callbacks,
    Outcome,
    Pending,
    Receipt,
    RunFuture,
    SendFuture,
    size_of,
    sizes_of,
)
from catmq_client.sending.routing import Kind, Layout, Route, Routes, slot_of


@dataclass(eq=False, slots=True)
class QueueBuffer:
    """The batches of a queue and kind, oldest first. Not locked."""

    routes: Routes
    queue: int | None
    kind: Kind
    options: ProducerOptions
    backoff: Backoff = field(init=False)
    batches: deque[Batch] = field(default_factory=deque)
    # The batch in flight, and the thread that took it.
    current: Batch | None = None
    taken_by: int = 0
    # Monotonic time before which no batch is sent, after a failed try.
    not_before: float = 0.0
    # Error text of the last try of a batch of this buffer; "" after a success.
    last_error: str = ""
    # Slots that a newer layout assigned to another queue, but whose messages stay in this buffer
    # for now, because a batch of it may be stored: see Accumulator.apply_layout.
    held_slots: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.backoff = Backoff(
            base_ms=self.options.retry_backoff_ms, max_ms=self.options.retry_backoff_max_ms
        )

    def open_batch(self, size: int, *, count: int = 1) -> Batch:
        """Return a batch with room for `count` messages of `size` bytes."""
        options = self.options
        if self.batches:
            last = self.batches[-1]
            count_fits = len(last.messages) + count <= options.batch_messages
            # A batch that was tried is repeated unchanged: its batch_id names its content.
            if (
                count_fits
                and last.size_bytes + size <= options.batch_bytes
                and not last.tries
            ):
                return last
        batch = Batch(
            topic=self.routes.layout.topic,
            queue=self.queue,
            linger_s=options.linger_ms / 1000,
            timeout_s=options.delivery_timeout_ms / 1000,
        )
        self.batches.append(batch)
        return batch

    def batch_for(self, sizes: Sequence[int]) -> tuple[Batch, int, int]:
        """Return a batch, and the number and size of the messages that it has room for.

        `sizes` are the sizes of messages. The batch takes the first of them, at least one.
        """
        options, total = self.options, sum(sizes)
        if len(sizes) <= options.batch_messages and total <= options.batch_bytes:
            return self.open_batch(total, count=len(sizes)), len(sizes), total
        batch = self.open_batch(sizes[0])
        room = options.batch_messages - len(batch.messages)
        count, size = 1, sizes[0]
        for next_size in sizes[1:room]:
            if batch.size_bytes + size + next_size > options.batch_bytes:
                break
            count += 1
            size += next_size
        return batch, count, size

    def ready_at(self, *, hurry: bool) -> float:
        """Return the monotonic time at which the oldest batch may be sent.

        For a batch that is ready now that is the time of its creation, so that the oldest of
        several ready batches goes first. `hurry` makes any batch ready.
        """
        batch, options = self.batches[0], self.options
        is_full = (
            len(batch.messages) >= options.batch_messages
            or batch.size_bytes >= options.batch_bytes
        )
        is_ready = is_full or batch.urgent or batch.tries or hurry or len(self.batches) > 1
        return max(self.not_before, batch.created_at if is_ready else batch.lingers_until)

    def leave_queue_if_free(self) -> None:
        """Have later FREE messages go to another queue: this batch is full or in flight."""
        if self.kind is Kind.FREE:
            self.routes.next_queue(after=self.queue)

    def has_unknown_outcome(self) -> bool:
        """Return True if a batch waits here that an earlier try may have stored."""
        return any(batch.unknown for batch in self.batches)

    def all_batches(self) -> list[Batch]:
        """Return the batch in flight and the queued batches."""
        return [batch for batch in (self.current, *self.batches) if batch]


class AppendedRun(NamedTuple):
    """Messages of an append_all() that are in a batch, by their index, and their buffer."""

    future: RunFuture
    indexes: Sequence[int]
    buffer: QueueBuffer


@dataclass(slots=True)
class AppendedMessages:
    """The messages of an append_all(): those that are in batches, and the refused ones."""

    # Not the messages themselves: their bodies must not stay in memory after they were sent.
    count: int
    runs: list[AppendedRun] = field(default_factory=list)
    errors: dict[int, CatmqError] = field(default_factory=dict)
    # Index of the first message for which there was no room, or the number of messages.
    room_until: int = field(init=False)

    def __post_init__(self) -> None:
        self.room_until = self.count

    def refuse_from(self, index: int, error: CatmqError) -> None:
        """Note the error of the message at `index` and of all after it."""
        self.errors.update(dict.fromkeys(range(index, self.count), error))
        if isinstance(error, BufferFull):
            self.room_until = index

    def buffers(self) -> set[QueueBuffer]:
        return {run.buffer for run in self.runs}

    def await_outcomes(self) -> list[Receipt | CatmqError]:
        """Wait until all messages have an outcome. Return the outcomes, in order."""
        if len(self.runs) == 1 and not self.errors:
            return [*self.runs[0].future.await_outcomes()]
        outcomes: dict[int, Outcome] = {**self.errors}
        for run in self.runs:
            outcomes.update(zip(run.indexes, run.future.await_outcomes(), strict=True))
        return [outcomes[index] for index in range(self.count)]


class Accumulator:
    """The buffers of a producer, under a common lock."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._buffers: dict[tuple[str, int | None, Kind], QueueBuffer] = {}
        # A single lock for all buffers. Its two conditions keep a sender that ends a batch
        # from waking other senders.
        self.lock: threading.RLock = threading.RLock()
        self._batch_ready = threading.Condition(self.lock)
        self.room_released: BellCondition = BellCondition(self.lock)
        # Messages and bytes that are buffered or in flight.
        self._messages = 0
        self._bytes = 0
        self._closed = False
        self.callbacks: Callbacks = Callbacks(self.room_released)
        # Senders that wait for a ready batch.
        self.idle_senders: int = 0
        # Called when an append waits for room.
        self.on_full: Callable[[], object] = lambda: None

    # Called by applications.

    def append(
        self,
        routes: Routes,
        message: dict[str, Any],
        *,
        urgent: bool = False,
        wakes_sender: bool = True,
        block_s: float = 0.0,
    ) -> tuple[SendFuture, QueueBuffer]:
        """Add a message to its buffer. Return its future and the buffer.

        `queue` in the message is the queue its sender named; with `queue_strict` False it
        is a preference. An urgent message is ready at once, and no sender is woken: the
        caller tries to deliver it. With wakes_sender=False the caller follows with
        make_ready().

        Waits up to `block_s` for room. Raises BufferFull, Closed, or OptionError for a queue
        of another topic.
        """
        size = size_of(message)
        with self.lock:
            self._make_room(size, block_s)
            buffer = self._route(routes, message)
            future, batch = self._add(buffer, message, size)
            if urgent:
                batch.urgent = True
            # Wake a sender for the first message, whose linger time it must watch, and for
            # a full batch; not for each message, which would cost more than the append.
            elif (
                wakes_sender
                and buffer.current is None
                and len(batch.messages) in (1, self._options.batch_messages)
            ):
                self._batch_ready.notify()
        return future, buffer

    def append_all(
        self, routes: Routes, messages: Sequence[dict[str, Any]], *, block_s: float
    ) -> AppendedMessages:
        """Add messages that are ready at once, those of a batch together.

        A message that is refused has its error at its index; the others are still sent.
        After a message for which there was no room, none is added, since it would overtake
        that message. The caller tries to deliver the last buffer itself, so senders are woken
        only for other buffers.
        """
        appended = AppendedMessages(len(messages))
        sizes, begin = sizes_of(messages), 0
        with self.lock:
            while begin < len(messages):
                end = begin + self._count_fitting(sizes[begin:])
                if end == begin:
                    try:
                        self._make_room(sizes[begin], block_s)
                    except CatmqError as error:
                        appended.refuse_from(begin, error)
                        break
                    end += 1
                self._append_fitting(
                    appended, routes, messages, sizes=sizes, indexes=range(begin, end)
                )
                begin = end
            if len(appended.buffers()) > 1:
                self._batch_ready.notify_all()
        return appended

    def _count_fitting(self, sizes: Sequence[int]) -> int:
        """Return how many of the first messages, given by their sizes, have room now."""
        if self._closed:
            return 0
        count, size = len(sizes), sum(sizes)
        # Usually there is room for all of them.
        while count and self._is_full(size, count=count):
            count -= 1
            size -= sizes[count]
        return count

    def _append_fitting(
        self,
        appended: AppendedMessages,
        routes: Routes,
        messages: Sequence[dict[str, Any]],
        *,
        sizes: Sequence[int],
        indexes: Sequence[int],
    ) -> None:
        """Add the messages at some indexes, for which there is room."""
        while indexes:
            next_indexes: list[int] = []
            for route, group in routes.group(messages, indexes, appended.errors).items():
                buffer = self._buffer(routes, route)
                while group:
                    batch, count, size = buffer.batch_for([sizes[i] for i in group])
                    chosen = [messages[i] for i in group[:count]]
                    if route.kind is not Kind.NAMED:
                        _write_queue(routes, route, chosen)
                    self._messages += count
                    self._bytes += size
                    # An append for each batch costs a third of one for each message.
                    run = batch.add_all(chosen, size)
                    batch.urgent = True
                    appended.runs.append(AppendedRun(run, group[:count], buffer))
                    group = group[count:]
                    if group or len(batch.messages) >= self._options.batch_messages:
                        buffer.leave_queue_if_free()
                    if route.kind is Kind.FREE:
                        # The batch is full, so the other messages may go to another queue.
                        next_indexes += group
                        break
            indexes = sorted(next_indexes)

    def _route(self, routes: Routes, message: dict[str, Any]) -> QueueBuffer:
        """Return the buffer of a message, and write the chosen queue into the message."""
        route = routes.choose(
            key=message.get("key"),
            queue=message.get("queue"),
            strict_queue=message.get("queue_strict", True),
        )
        if "queue_strict" in message:
            _write_queue(routes, route, [message])
        elif route.queue is not None:
            message["queue"] = route.queue
        return self._buffer(routes, route)

    def _buffer(self, routes: Routes, route: Route) -> QueueBuffer:
        """Return the buffer of a route."""
        key = (routes.layout.topic, route.queue, route.kind)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = QueueBuffer(
                routes, route.queue, route.kind, self._options
            )
        return buffer

    def _add(
        self, buffer: QueueBuffer, message: dict[str, Any], size: int
    ) -> tuple[SendFuture, Batch]:
        """Add a message to the open batch of its buffer."""
        batch = buffer.open_batch(size)
        self._messages += 1
        self._bytes += size
        future = batch.add(message, size)
        if len(batch.messages) >= self._options.batch_messages:
            buffer.leave_queue_if_free()
        return future, batch

    def _make_room(self, size: int, block_s: float) -> None:
        """Wait up to `block_s` for room. Raises BufferFull or Closed."""
        if self._closed:
            raise Closed("the producer is closed")
        if not self._is_full(size):
            return
        self._recount()
        # Room is released only by senders, so wake them, or start a sender, before waiting.
        self._batch_ready.notify_all()
        self.on_full()
        if not self.room_released.wait_for(
            lambda: self._closed or not self._is_full(size), block_s
        ):
            raise BufferFull(
                f"no room for {block_s:g} s: {self._messages} messages are unconfirmed"
            )
        if self._closed:
            raise Closed("the producer was closed while a send waited for room")

    def _recount(self) -> None:
        """Count messages and bytes again. An interrupted thread may have left wrong counts."""
        self._messages = sum(len(batch.futures) for batch in self._batches())
        self._bytes = sum(batch.size_bytes for batch in self._batches())

    def _is_full(self, size: int, *, count: int = 1) -> bool:
        # A message that is alone is accepted whatever its size, or it could never be sent.
        bytes_exceeded = (
            self._bytes + size > self._options.buffer_bytes and self._messages + count > 1
        )
        return bytes_exceeded or self._messages + count > self._options.buffer_messages

    # Called by senders.

    def take(
        self, *, wait_s: float = 0.0, only: QueueBuffer | None = None
    ) -> tuple[QueueBuffer, Batch] | None:
        """Return the oldest ready batch with its buffer, or None after `wait_s` seconds.

        `only` restricts the choice to a single buffer.
        """
        deadline = time.monotonic() + wait_s
        with self.lock:
            while True:
                now = time.monotonic()
                buffer, ready_at = self._first_ready(
                    (only,) if only else self._buffers.values()
                )
                if buffer is not None and ready_at <= now:
                    # An exception may be raised into this thread between any two of these
                    # lines. `current` is set before the batch leaves `batches`, so the batch
                    # is always in one of the two or in both, and is never lost. The caller
                    # then calls abandon(), which recognises the batch by `taken_by`.
                    buffer.taken_by = threading.get_ident()
                    batch = buffer.current = buffer.batches[0]
                    buffer.batches.popleft()
                    # An interrupted append may have left a future without a message.
                    batch.drop_unpaired_futures()
                    buffer.leave_queue_if_free()
                    return buffer, batch
                if now >= deadline or (self._closed and not self._messages):
                    return None
                self.idle_senders += 1
                self._batch_ready.wait(min(ready_at, deadline) - now)
                self.idle_senders -= 1

    def _first_ready(
        self, buffers: Iterable[QueueBuffer]
    ) -> tuple[QueueBuffer | None, float]:
        """Return the buffer that is ready first, and the monotonic time at which it is."""
        first, first_at = None, time.monotonic() + 3600.0
        for buffer in buffers:
            if buffer.current is None and buffer.batches:
                at = buffer.ready_at(hurry=self._closed)
                if at < first_at:
                    first, first_at = buffer, at
        return first, first_at

    def needs_sender(self) -> bool:
        """Return True if a batch is ready or lingering and no sender is idle."""
        with self.lock:
            return (
                self.idle_senders == 0
                and self._first_ready(self._buffers.values())[0] is not None
            )

    def wake_sender(self, buffer: QueueBuffer) -> None:
        """Wake an idle sender if the buffer is free.

        The sender may have chosen its sleep before this batch was added.
        """
        with self.lock:
            if buffer.current is None:
                self._batch_ready.notify()

    def make_ready(self, buffers: Iterable[QueueBuffer]) -> None:
        """Make the batches of these buffers ready now, and wake senders for them."""
        with self.lock:
            free_count = 0
            for buffer in buffers:
                for batch in buffer.batches:
                    batch.urgent = True
                free_count += buffer.current is None and bool(buffer.batches)
            self._batch_ready.notify(free_count)

    def abandon(
        self, buffer: QueueBuffer, own: Collection[Pending], error: CatmqError
    ) -> None:
        """Release the batch that this thread has taken, after an exception was raised into the
        thread.

        `own` are the futures of the caller that gives up. By the messages of the batch:

            only own messages          the batch fails with `error`
            others, too; not tried     the own messages fail with `error`; the others are put
                                       back, and other threads send them
            others, too; tried         it may be stored, so it is not divided: it is repeated as
                                       a whole, under its batch_id, and all futures end with
                                       that result
        """
        with self.lock:
            self._recount()
            batch = buffer.current
            if batch is None or buffer.taken_by != threading.get_ident():
                return
            # The thread was interrupted between the changes of `current` and `batches`: in take()
            # before the popleft(), or in put_back() after the extendleft(). So the batch is in
            # its place, and only `current` has to be released.
            if batch in buffer.batches:
                self.put_back(buffer, [], delay_s=0.0)
                return
            events = {future.ended for future in batch.futures}
            foreign_indexes = [
                i for i, future in enumerate(batch.futures) if future not in own
            ]
            if not foreign_indexes:
                batch.fail(error)
                self.finish_batch(buffer, batch)
            elif batch.tries:
                self.put_back(buffer, [batch.copy_for_repeat()], delay_s=0.0)
            else:
                own_part = batch.split_off(
                    [i for i, future in enumerate(batch.futures) if future in own]
                )
                own_part.fail(error)
                self.put_back(
                    buffer, [batch.split_off(foreign_indexes)], delay_s=0.0, ended=own_part
                )
            # Wake the threads that wait for the old batch: new batches have its futures.
            for event in events:
                event.set()

    def finish_batch(self, buffer: QueueBuffer, batch: Batch) -> None:
        """Release the room of an ended batch, and its buffer for the next batch."""
        with self.lock:
            buffer.current = None
            buffer.backoff.reset()
            buffer.not_before = 0.0
            self._release_room(batch)
            self._release_held_slots(buffer)
            if buffer.batches:
                self._batch_ready.notify()

    def put_back(
        self,
        buffer: QueueBuffer,
        batches: Sequence[Batch],
        *,
        delay_s: float,
        ended: Batch | None = None,
    ) -> None:
        """Put batches back in front of the buffer, to be tried in `delay_s` seconds.

        The messages of `ended`, the part of the batch that was refused, leave the buffer.
        """
        with self.lock:
            buffer.batches.extendleft(reversed(batches))
            buffer.current = None
            buffer.not_before = time.monotonic() + delay_s
            if ended is not None:
                self._release_room(ended)
            self._release_held_slots(buffer)
            self._batch_ready.notify()

    def _release_room(self, batch: Batch) -> None:
        """Release the room of an ended batch. Its callbacks count as due from now on."""
        self._messages -= len(batch.futures)
        self._bytes -= batch.size_bytes
        self.callbacks.note_ended(batch)
        self.room_released.notify_all()
        if self._closed and not self._messages:
            self._batch_ready.notify_all()

    def apply_layout(
        self,
        routes: Routes,
        layout: Layout,
        *,
        refused: tuple[QueueBuffer, Batch] | None = None,
    ) -> None:
        """Use a newer layout: move keyed messages to the new queues of their slots, in order.

        A buffer with a batch in flight, or with a batch that may be stored, keeps its messages
        until that batch has ended. If its messages moved, they could be stored in the new
        queue before the batch in the old queue, against the order of their keys. Until then
        the moved slots are *held*: later messages of these slots join that buffer, too.

        `refused` is a batch in flight with its buffer, whose queue refused it definitely. It
        is put back as the first batch of the buffer, so that it does not hold the slots.
        """
        with self.lock:
            if layout is not routes.layout:
                routes.replace(layout)
            if refused is not None:
                refused[0].batches.appendleft(refused[1])
                refused[0].current = None
            for buffer in [*self._buffers.values()]:
                if buffer.routes is routes and buffer.kind == Kind.KEYED:
                    self._move_or_hold_slots(
                        buffer,
                        holds=buffer.current is not None or buffer.has_unknown_outcome(),
                    )
            self._batch_ready.notify_all()

    def _release_held_slots(self, buffer: QueueBuffer) -> None:
        """End the hold of a buffer's slots, and move their messages, unless a batch of the
        buffer may still be stored.
        """
        if buffer.held_slots and not buffer.has_unknown_outcome():
            self._move_or_hold_slots(buffer, holds=False)

    def _move_or_hold_slots(self, buffer: QueueBuffer, *, holds: bool) -> None:
        """Apply the present layout to a buffer whose slots it may assign to other queues.

        If `holds`, the messages stay, and the moved slots are held. Otherwise the messages
        move to the buffers of their new queues. Replaces the slots held before.
        """
        routes = buffer.routes
        for slot in buffer.held_slots:
            routes.held_slots.pop(slot, None)
        buffer.held_slots = set()
        batches = buffer.all_batches()
        slots = {slot_of(message["key"]) for batch in batches for message in batch.messages}
        moved_slots = {
            slot
            for slot in slots
            if routes.layout.slots and routes.layout.slots[slot] != buffer.queue
        }
        if holds:
            buffer.held_slots = moved_slots
            # The `or 0` is for the type only: the queue of a KEYED buffer of a topic with slots
            # is not None.
            routes.held_slots.update(dict.fromkeys(moved_slots, buffer.queue or 0))
        elif moved_slots:
            buffer.batches = deque()
            for batch in batches:
                for message, future in zip(
                    batch.messages, batch.divide_runs(), strict=True
                ):
                    # Without a queue in the message, _route() chooses by the key.
                    message.pop("queue", None)
                    target = self._route(routes, message).open_batch(size_of(message))
                    target.adopt_message(message, future, batch.expires_at)
                    target.urgent = target.urgent or batch.urgent
                batch.wake_waiters()

    # Called at the end.

    def make_all_ready(self) -> list[Pending]:
        """Make all batches ready now. Return the futures of sends that have not ended."""
        with self.lock:
            for batch in self._batches():
                batch.urgent = True
            self._batch_ready.notify_all()
            return [*self._unfinished_futures(), *self.callbacks.unreturned()]

    def await_callbacks(
        self, futures: Collection[Pending], timeout_s: float | None
    ) -> bool:
        """Wait until these sends and their callbacks have ended. Return True if they have."""
        return self.callbacks.await_returned(
            futures, timeout_s, under_way=self._unfinished_futures
        )

    def close(self) -> None:
        """Refuse further messages. Senders end when no message is left."""
        with self.lock:
            self._closed = True
            self._batch_ready.notify_all()
            self.room_released.notify_all()

    def _batches(self) -> list[Batch]:
        return [
            batch for buffer in self._buffers.values() for batch in buffer.all_batches()
        ]

    def _unfinished_futures(self) -> set[Pending]:
        return {future for batch in self._batches() for future in batch.futures}


def _write_queue(routes: Routes, route: Route, messages: Sequence[dict[str, Any]]) -> None:
    """Write the queue that was chosen for messages into them."""
    queue = route.queue
    for message in messages:
        if "queue_strict" in message and routes.layout.slots:
            # The choice was made here. Without a layout the broker makes it and needs the
            # field.
            del message["queue_strict"]
        if queue is not None:
            message["queue"] = queue
