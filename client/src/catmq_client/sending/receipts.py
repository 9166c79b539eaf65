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


def sizes_of(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Return the approximate size of each message in a request, in bytes."""
    # Most messages have no headers. For them this saves a call.
    return [
        size_of(message)
        if "headers" in message
        else OVERHEAD_BYTES + len(message["body_bytes"])
        for message in messages
    ]


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

    `futures` has the future of the message at each index. Messages that were appended together
    share a RunFuture, which stands at the index of each of them. All futures share an event: an
    event for each message would make send_async several times slower.
    """

    topic: str
    queue: int | None
    linger_s: InitVar[float]
    timeout_s: InitVar[float]
    # Created before the first try and repeated by every try, so that a send is stored once.
    batch_id: str = field(default_factory=uuid7)
    messages: list[dict[str, Any]] = field(default_factory=list)
    futures: list[Pending] = field(default_factory=list)
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

    def add_all(self, messages: Sequence[dict[str, Any]], size_bytes: int) -> RunFuture:
        """Add messages of `size_bytes` in total. Return the future that they share."""
        run = RunFuture(self.done, len(messages))
        self.drop_unpaired_futures()
        # In the order of add(), for the same reason.
        self.futures += [run] * len(messages)
        self.messages += messages
        self.size_bytes += size_bytes
        return run

    def divide_runs(self) -> list[SendFuture]:
        """Replace shared futures by a future for each message. Return the futures.

        Call it before messages leave this batch for several others.
        """
        futures: list[SendFuture] = []
        while len(futures) < len(self.futures):
            future = self.futures[len(futures)]
            futures += future.divide() if isinstance(future, RunFuture) else [future]
        # A single assignment: if the thread is interrupted before it, the shared futures are
        # still in their places.
        self.futures = [*futures]
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
        futures = self.divide_runs()
        for i in indexes:
            new_batch.adopt_message(self.messages[i], futures[i], self.expires_at)
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
        index = 0
        while index < len(self.futures):
            future = self.futures[index]
            if isinstance(future, RunFuture):
                future.set_outcomes(outcomes[index : index + future.count])
                index += future.count
            else:
                future.outcome = outcomes[index]
                index += 1
        self.done.set()

    def fail(self, error: CatmqError) -> None:
        """End all futures that have no outcome yet with `error`. Runs no callbacks."""
        for future in self.futures:
            if isinstance(future, RunFuture):
                if future.outcomes is None:
                    future.set_outcomes([error] * future.count)
            elif future.outcome is None:
                future.outcome = error
        self.done.set()

    def wake_waiters(self) -> None:
        """Wake threads that wait for this batch. Its futures now belong to other batches."""
        self.done.set()

    def futures_with_callbacks(self) -> list[SendFuture]:
        """Return the futures to which a callback was added. Shared futures have none."""
        first = self.futures[0] if self.futures else None
        if isinstance(first, RunFuture) and first.count == len(self.futures):
            return []
        return [
            future
            for future in self.futures
            if isinstance(future, SendFuture) and future.callbacks
        ]

    def run_callbacks(self) -> None:
        """Run the callbacks of all futures.

        Call it only when the buffer is free, since a callback may send or flush.
        """
        for future in self.futures_with_callbacks():
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
        outcome = yield from self.wait_in_loop()
        if isinstance(outcome, CatmqError):
            raise outcome
        return outcome

    def wait_in_loop(self) -> Generator[Any, None, Outcome]:
        """Wait in a coroutine, with `yield from`. Return the receipt or error."""
        while self.outcome is None:
            # None if the batch has ended, or was split, since the line above.
            waiter = self.ended.waiter()
            if waiter is not None:
                yield from waiter
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


class RunFuture:
    """The outcomes of messages that a call has appended to a batch together.

    It takes the place of a SendFuture for each of them, which nobody asks for in send_batch()
    and send_many(). If the batch is divided, because a message of it was refused or its queue
    has moved, each message gets a future of its own, which follows it into its new batch.
    """

    __slots__ = ("count", "ended", "futures", "outcomes")

    def __init__(self, ended: LoopEvent, count: int) -> None:
        # The event of its batch; see SendFuture.
        self.ended: LoopEvent = ended
        self.count: int = count
        self.outcomes: Sequence[Outcome] | None = None
        # The futures of the messages once the batch was divided.
        self.futures: list[SendFuture] | None = None

    def divide(self) -> list[SendFuture]:
        """Return a future for each message. Every call returns the same futures."""
        if self.futures is None:
            self.futures = [SendFuture(self.ended) for _ in range(self.count)]
        return self.futures

    def done(self) -> bool:
        """Return True if all messages have an outcome."""
        if self.outcomes is not None or self.futures is None:
            return self.outcomes is not None
        return all(future.done() for future in self.futures)

    def set_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Set the outcome of each message, in order."""
        # A thread that was interrupted while it divided the batch has left futures that the
        # batch does not know. A flush may wait for them.
        for future, outcome in zip(self.futures or (), outcomes, strict=False):
            future.outcome = outcome
        self.outcomes = outcomes

    def await_outcomes(self, timeout_s: float | None = None) -> Sequence[Outcome]:
        """Wait until all messages have an outcome. Return the outcomes, in order.

        Raises TimeoutError after `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.outcomes is None:
            remaining_s = (
                None if deadline is None else max(0.0, deadline - time.monotonic())
            )
            if self.futures is not None:
                outcomes = []
                for future in self.futures:
                    future.exception(remaining_s)
                    outcomes.append(future.receipt_or_error())
                return outcomes
            # The event is also set when the batch was divided.
            if not self.ended.wait(remaining_s):
                raise TimeoutError(
                    f"no receipts within {timeout_s} s; the messages are still being sent"
                )
        return self.outcomes

    def __await__(self) -> Generator[Any, None, Sequence[Outcome]]:
        """Wait in a coroutine. Returns the outcomes, in order."""
        while self.outcomes is None:
            if self.futures is not None:
                for future in self.futures:
                    yield from future.wait_in_loop()
                return [future.receipt_or_error() for future in self.futures]
            waiter = self.ended.waiter()
            if waiter is not None:
                yield from waiter
        return self.outcomes


# What a batch has for its messages: a future for each, or for a run of them.
Pending = SendFuture | RunFuture


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
        self._unreturned.update(batch.futures_with_callbacks())

    def has_callbacks_due(self, batch: Batch) -> bool:
        """Return True if the batch has callbacks that have not returned."""
        return bool(batch.futures_with_callbacks()) or not self._unreturned.isdisjoint(
            batch.futures
        )

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
                self._unreturned.difference_update(
                    future for future in batch.futures if isinstance(future, SendFuture)
                )
                self._changed.notify_all()

    def await_returned(
        self,
        futures: Collection[Pending],
        timeout_s: float | None,
        *,
        under_way: Callable[[], Iterable[Pending]],
    ) -> bool:
        """Wait until these sends and their callbacks have ended. Return True if they have.

        `under_way` returns the sends that have not ended. Inside a callback this returns
        True at once, because the callback would wait for itself or for another callback
        that waits for it.
        """

        def are_over() -> bool:
            return {*self._unreturned, *under_way()}.isdisjoint(futures)

        with self._changed:
            return self._is_in_callback() or self._changed.wait_for(are_over, timeout_s)

    def _is_in_callback(self) -> bool:
        return getattr(self._local, "calls", False)
