"""Results of a send: receipts, futures, the batch they share, and the callbacks at its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from catmq_client.callables import check_callable, check_result
from catmq_client.errors import CatmqError
from catmq_client.loops import LoopEvent
from catmq_client.sending.ids import uuid7

log: logging.Logger = logging.getLogger("catmq.producer")

# Estimated size of a message in a request, without body, key and headers.
OVERHEAD_BYTES = 64


def size_of(message: dict[str, Any]) -> int:
    """Return the approximate size of a message in a request, in bytes."""
    headers = message.get("headers")
    extra = sum(len(name) + len(value) for name, value in headers.items()) if headers else 0
    return OVERHEAD_BYTES + len(message["body_bytes"]) + extra


class Receipt(NamedTuple):
    """Location of a stored message. `message_id` finds or recalls it; its form is opaque.

    A delayed message has no queue and offset yet; `due_at_ms` is its delivery time, ms
    since 1970 UTC.
    """

    topic: str
    queue: int | None
    offset: int | None
    message_id: str
    due_at_ms: int | None = None


Outcome = Receipt | CatmqError


@dataclass(eq=False, kw_only=True, slots=True)
class Batch:
    """Messages of a topic for a single queue, sent in a single request.

    Its futures share an event. An event for each message would make send_async several
    times slower.
    """

    topic: str
    queue: int | None
    linger_s: InitVar[float]
    timeout_s: InitVar[float]
    # Created before the first try and repeated by every try, so that a send is stored once.
    batch_id: str = field(default_factory=uuid7)
    messages: list[dict[str, Any]] = field(default_factory=list)
    futures: list[SendFuture] = field(default_factory=list)
    size_bytes: int = 0
    created_at: float = field(default_factory=time.monotonic)
    lingers_until: float = field(init=False)
    expires_at: float = field(init=False)
    urgent: bool = False
    tries: int = 0
    # Error text of the last try. Not the exception: its traceback would keep all objects of
    # the try in memory.
    last_error: str = ""
    # True once a try may have stored the batch. Its queue and batch_id are then fixed.
    unknown: bool = False
    # Queues that refused the batch.
    moved_from: set[int | None] = field(default_factory=set)
    done: LoopEvent = field(default_factory=LoopEvent)

    def __post_init__(self, linger_s: float, timeout_s: float) -> None:
        self.lingers_until = self.created_at + linger_s
        self.expires_at = self.created_at + timeout_s

    def add(self, message: dict[str, Any], size_bytes: int) -> SendFuture:
        """Add a message. Return its future."""
        future = SendFuture(self.done)
        self.drop_unpaired_futures()
        # First the future, then its message: drop_unpaired_futures() counts on this order.
        self.futures.append(future)
        self.messages.append(message)
        self.size_bytes += size_bytes
        return future

    def drop_unpaired_futures(self) -> None:
        """Drop futures without a message. An interrupted add() left them."""
        if len(self.futures) != len(self.messages):
            del self.futures[len(self.messages) :]

    def add_all(
        self, messages: Sequence[dict[str, Any]], size_bytes: int
    ) -> list[SendFuture]:
        """Add messages of `size_bytes` in total. Return their futures."""
        done = self.done
        futures = [SendFuture(done) for _ in messages]
        self.drop_unpaired_futures()
        self.futures += futures
        self.messages += messages
        self.size_bytes += size_bytes
        return futures

    def adopt_message(
        self, message: dict[str, Any], future: SendFuture, expires_at: float
    ) -> None:
        """Take over a message, untried or definitely refused, from another batch."""
        future.ended = self.done
        self.messages.append(message)
        self.futures.append(future)
        self.size_bytes += size_of(message)
        self.expires_at = min(self.expires_at, expires_at)

    def split_off(self, indexes: list[int]) -> Batch:
        """Move some of the messages, with their futures, to a new batch with its own id.

        Only after a definite refusal: nothing may be stored under the old id.
        """
        new_batch = Batch(topic=self.topic, queue=self.queue, linger_s=0, timeout_s=0)
        new_batch.expires_at = self.expires_at
        new_batch.moved_from = set(self.moved_from)
        new_batch.urgent = True
        for i in indexes:
            new_batch.adopt_message(self.messages[i], self.futures[i], self.expires_at)
        return new_batch

    def copy_for_repeat(self) -> Batch:
        """Return a batch with the same messages and id, for a try that was cut off.

        It counts as possibly stored.
        """
        copy = self.split_off([*range(len(self.messages))])
        copy.batch_id, copy.tries = self.batch_id, self.tries
        copy.last_error, copy.unknown = self.last_error, True
        return copy

    def move_to(self, queue: int | None) -> None:
        """Assign another queue and a new id. Only after a definite refusal."""
        self.moved_from.add(self.queue)
        self.queue = queue
        self.batch_id = uuid7()
        for message in self.messages:
            message["queue"] = queue

    def set_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """End the futures with the outcomes of their messages. Runs no callbacks."""
        for future, outcome in zip(self.futures, outcomes, strict=True):
            future.outcome = outcome
        self.done.set()

    def fail(self, error: CatmqError) -> None:
        """End all futures that have no outcome yet with `error`. Runs no callbacks."""
        for future in self.futures:
            if future.outcome is None:
                future.outcome = error
        self.done.set()

    def wake_waiters(self) -> None:
        """Wake threads that wait for this batch. Its futures now belong to other batches."""
        self.done.set()

    def has_callbacks(self) -> bool:
        return any(future.callbacks for future in self.futures)

    def run_callbacks(self) -> None:
        """Run the callbacks of all futures.

        Call it only when the buffer is free, since a callback may send or flush.
        """
        for future in self.futures:
            if future.callbacks is not None:
                future.run_callbacks()


class SendFuture:
    """The receipt of a message being sent, like a concurrent.futures.Future without cancel.

    Threads call result(), and coroutines of any event loop may await it.
    """

    __slots__ = ("callbacks", "ended", "outcome")
    # Its message is sent whether or not it is awaited; see callables.check_result().
    ends_by_itself = True

    def __init__(self, ended: LoopEvent) -> None:
        # The event of its batch, not the batch itself. A reference cycle would keep all
        # messages in memory until the garbage collector runs.
        self.ended: LoopEvent = ended
        self.outcome: Outcome | None = None
        self.callbacks: list[Callable[[SendFuture], object]] | None = None

    def done(self) -> bool:
        """Return True if result() would return or raise at once."""
        return self.outcome is not None

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Return the receipt.

        Raises the error of the send, or TimeoutError after `timeout_s` seconds.
        """
        outcome = self._await_outcome(timeout_s)
        if isinstance(outcome, CatmqError):
            raise outcome
        return outcome

    def get(self, timeout: float | None = None) -> Receipt:
        """Return result(timeout), under the name that kafka-python uses."""
        return self.result(timeout)

    def exception(self, timeout_s: float | None = None) -> CatmqError | None:
        """Wait for the end of the send. Return its error, None after success.

        Raises TimeoutError after `timeout_s` seconds.
        """
        outcome = self._await_outcome(timeout_s)
        return outcome if isinstance(outcome, CatmqError) else None

    def receipt_or_error(self) -> Outcome:
        """Wait for the end of the send. Return its receipt or error."""
        return self.outcome or self._await_outcome(None)

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait in a coroutine. Returns the receipt, or raises the error of the send.

        If the waiting task is cancelled, the message is still sent.
        """
        while self.outcome is None:
            # None if the batch has ended, or was split, since the line above.
            waiter = self.ended.waiter()
            if waiter is not None:
                yield from waiter
        if isinstance(self.outcome, CatmqError):
            raise self.outcome
        return self.outcome

    def _await_outcome(self, timeout_s: float | None) -> Outcome:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.outcome is None:
            remaining_s = (
                None if deadline is None else max(0.0, deadline - time.monotonic())
            )
            # A batch that was split sets its event, too. The future then has no outcome yet,
            # and `ended` is the event of its new batch.
            if not self.ended.wait(remaining_s):
                raise TimeoutError(
                    f"no receipt within {timeout_s} s; the message is still being sent"
                )
        return self.outcome

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call `callback(future)` in a sender thread when the send ends; at once if it has.

        Raises OptionError for a coroutine function, a generator function or a class.
        """
        check_callable("callback", callback)
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.outcome is not None:
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run each callback once."""
        while self.callbacks:
            # Two threads may get here: the sender, and a thread that adds a callback late.
            # pop() gives each callback to a single thread.
            try:
                callback = self.callbacks.pop(0)
            except IndexError:
                return
            try:
                check_result("the callback", callback(self))
            except Exception:
                log.exception("a callback of a send failed")


class Callbacks:
    """Runs callbacks of ended sends, and lets flush() wait until they have returned.

    Belongs to an accumulator and uses its lock; `changed` is a condition on that lock.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # Sends that have ended, and whose callbacks have not returned.
        self._unreturned: set[SendFuture] = set()
        # `.calls` is True in a thread that runs callbacks now.
        self._local = threading.local()

    def note_ended(self, batch: Batch) -> None:
        """Note the futures of an ended batch that have callbacks.

        Called under the lock, in the same step as the batch's end.
        """
        self._unreturned.update([future for future in batch.futures if future.callbacks])

    def has_callbacks_due(self, batch: Batch) -> bool:
        """Return True if the batch has callbacks that have not returned."""
        return batch.has_callbacks() or not self._unreturned.isdisjoint(batch.futures)

    def unreturned(self) -> list[SendFuture]:
        """Return the sends whose callbacks have not returned. Called under the lock."""
        return [*self._unreturned]

    def run(self, batch: Batch) -> None:
        """Run the callbacks of a batch, then wake threads that flush."""
        outer, self._local.calls = self._is_in_callback(), True
        try:
            batch.run_callbacks()
        finally:
            # A callback may call back into here, so the outer value is restored.
            self._local.calls = outer
            with self._changed:
                self._unreturned.difference_update(batch.futures)
                self._changed.notify_all()

    def await_returned(
        self,
        futures: Collection[SendFuture],
        timeout_s: float | None,
        *,
        under_way: Callable[[], Iterable[SendFuture]],
    ) -> bool:
        """Wait until these sends and their callbacks have ended. Return True if they have.

        `under_way` returns the sends that have not ended. Inside a callback this returns
        True at once, because the callback would wait for itself or for another callback
        that waits for it.
        """

        def are_over() -> bool:
            return self._unreturned.union(under_way()).isdisjoint(futures)

        with self._changed:
            return self._is_in_callback() or self._changed.wait_for(are_over, timeout_s)

    def _is_in_callback(self) -> bool:
        return getattr(self._local, "calls", False)
