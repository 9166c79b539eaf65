"""Results of a send: receipts, futures, the batch they travel in, and the callbacks when it
has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from catmq_client.callables import check_callable, check_result
from catmq_client.errors import CatmqError
from catmq_client.sending.ids import uuid7

log = logging.getLogger("catmq.producer")

# What a message costs on the wire beside its body, key and headers.
OVERHEAD_BYTES = 64


def size_of(message: dict[str, Any]) -> int:
    """About how many bytes the message takes in a request."""
    headers = message.get("headers")
    extra = sum(len(name) + len(value) for name, value in headers.items()) if headers else 0
    return OVERHEAD_BYTES + len(message["body_bytes"]) + extra


class Receipt(NamedTuple):
    """Location of a stored message. `message_id` finds it again, or recalls it; it is
    opaque.

    A message that waits for its time has no queue and offset yet; `due_at_ms` says when it
    comes, ms since 1970 UTC.
    """

    topic: str
    queue: int | None
    offset: int | None
    message_id: str
    due_at_ms: int | None = None


Outcome = Receipt | CatmqError


@dataclass(eq=False, kw_only=True, slots=True)
class Batch:
    """Messages of one topic for one queue, sent in one request; all futures share its
    event.

    One event for a batch, not one for each message, is what keeps send_async cheap.
    """

    topic: str
    queue: int | None
    linger_s: InitVar[float]
    timeout_s: InitVar[float]
    # Made before the first try: every try repeats it, so a send is stored once.
    batch_id: str = field(default_factory=uuid7)
    messages: list[dict[str, Any]] = field(default_factory=list)
    futures: list[SendFuture] = field(default_factory=list)
    size_bytes: int = 0
    created_at: float = field(default_factory=time.monotonic)
    lingers_until: float = field(init=False)
    expires_at: float = field(init=False)
    urgent: bool = False
    tries: int = 0
    # How the last try ended; no exception, which would hold all that was on its way.
    last_error: str = ""
    # A try ended without our knowing whether the batch is stored: its queue is now fixed.
    unknown: bool = False
    moved_from: set[int | None] = field(default_factory=set)
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, linger_s: float, timeout_s: float) -> None:
        self.lingers_until = self.created_at + linger_s
        self.expires_at = self.created_at + timeout_s

    def add(self, message: dict[str, Any], size_bytes: int) -> SendFuture:
        future = SendFuture(self.done)
        self.mend()
        self.futures.append(future)
        self.messages.append(message)
        self.size_bytes += size_bytes
        return future

    def mend(self) -> None:
        """Drop futures without a message: the thread that added them was interrupted."""
        if len(self.futures) != len(self.messages):
            del self.futures[len(self.messages) :]

    def add_all(
        self, messages: Sequence[dict[str, Any]], size_bytes: int
    ) -> list[SendFuture]:
        done = self.done
        futures = [SendFuture(done) for _ in messages]
        self.mend()
        self.futures += futures
        self.messages += messages
        self.size_bytes += size_bytes
        return futures

    def adopt(self, message: dict[str, Any], future: SendFuture, expires_at: float) -> None:
        """Take over a message that was never tried, or definitely refused, in another
        batch.
        """
        future.ended = self.done
        self.messages.append(message)
        self.futures.append(future)
        self.size_bytes += size_of(message)
        self.expires_at = min(self.expires_at, expires_at)

    def part(self, indexes: list[int]) -> Batch:
        """A batch of its own for some of the messages, whose futures move over.

        Only after a definite refusal: it has a new id, so nothing may be stored under the
        old one.
        """
        part = Batch(topic=self.topic, queue=self.queue, linger_s=0, timeout_s=0)
        part.expires_at = self.expires_at
        part.moved_from = set(self.moved_from)
        part.urgent = True
        for i in indexes:
            part.adopt(self.messages[i], self.futures[i], self.expires_at)
        return part

    def repeated(self) -> Batch:
        """Return a batch with the same messages and id: its try was cut off, and may be
        stored.
        """
        repeated = self.part([*range(len(self.messages))])
        repeated.batch_id, repeated.tries = self.batch_id, self.tries
        repeated.last_error, repeated.unknown = self.last_error, True
        return repeated

    def move(self, queue: int | None) -> None:
        """Send the batch to another queue, under a new id; only after a definite refusal."""
        self.moved_from.add(self.queue)
        self.queue = queue
        self.batch_id = uuid7()
        for message in self.messages:
            message["queue"] = queue

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Hand each future what became of its message; call nobody back."""
        for future, outcome in zip(self.futures, outcomes, strict=True):
            future.outcome = outcome
        self.done.set()

    def fail(self, error: CatmqError) -> None:
        """End all futures that have no result yet with `error`; call nobody back."""
        for future in self.futures:
            if future.outcome is None:
                future.outcome = error
        self.done.set()

    def let_go(self) -> None:
        """Wake those who wait for this batch: their futures now belong to others."""
        self.done.set()

    def has_callbacks(self) -> bool:
        return any(future.callbacks for future in self.futures)

    def run_callbacks(self) -> None:
        """Call who wants to be called. Only when the buffer is free: a callback may send,
        or flush.
        """
        for future in self.futures:
            if future.callbacks is not None:
                future.run_callbacks()


class SendFuture:
    """The receipt of a message that is on its way; like concurrent.futures.Future, without
    cancel.
    """

    __slots__ = ("callbacks", "ended", "outcome")

    def __init__(self, ended: threading.Event) -> None:
        # Of the batch that it travels in. Not the batch: both would be garbage in a circle,
        # with all
        # messages, until Python's collector stops everything to find it.
        self.ended = ended
        self.outcome: Outcome | None = None
        self.callbacks: list[Callable[[SendFuture], object]] | None = None

    def done(self) -> bool:
        """Return True if result() would return or raise at once."""
        return self.outcome is not None

    def result(self, timeout_s: float | None = None) -> Receipt:
        """The receipt; raises what the send ended with, or TimeoutError after `timeout_s`
        seconds.
        """
        outcome = self._awaited(timeout_s)
        if isinstance(outcome, CatmqError):
            raise outcome
        return outcome

    def get(self, timeout: float | None = None) -> Receipt:
        """result(), as kafka-python calls it."""
        return self.result(timeout)

    def exception(self, timeout_s: float | None = None) -> CatmqError | None:
        """Wait for the end; return its error, None after success; TimeoutError after
        `timeout_s` seconds.
        """
        outcome = self._awaited(timeout_s)
        return outcome if isinstance(outcome, CatmqError) else None

    def receipt_or_error(self) -> Outcome:
        """Wait for the end of the send; return its receipt or error."""
        return self.outcome or self._awaited(None)

    def _awaited(self, timeout_s: float | None) -> Outcome:
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self.outcome is None:
            left_s = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            # A batch that was split announces itself without outcomes: look which batch it
            # is now.
            if not self.ended.wait(left_s):
                raise TimeoutError(
                    f"no receipt within {timeout_s} s; the message is still being sent"
                )
        return self.outcome

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call `callback(future)` when the send has ended: at once if it has, else in a
        sender's thread.

        Raises OptionError for a coroutine function, a generator function or a class.
        """
        check_callable("callback", callback)
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)
        if self.outcome is not None:
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Call each callback once; list.pop decides between two threads that both come
        here.
        """
        while self.callbacks:
            try:
                callback = self.callbacks.pop(0)
            except IndexError:
                return
            try:
                check_result("the callback", callback(self))
            except Exception:
                log.exception("a callback of a send failed")


class Callbacks:
    """Calls of those who want to be told how a send ended; who flushes waits for them, too.

    Those of one accumulator, under its lock; `changed` is a condition on it.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # Sends that have ended while a call was due; and whether this thread makes calls
        # now.
        self._uncalled: set[SendFuture] = set()
        self._thread = threading.local()

    def note(self, batch: Batch) -> None:
        """A batch has ended: its calls are due. Called under the lock, in one step with its
        end.
        """
        self._uncalled.update([future for future in batch.futures if future.callbacks])

    def are_due(self, batch: Batch) -> bool:
        return batch.has_callbacks() or not self._uncalled.isdisjoint(batch.futures)

    def waiting(self) -> list[SendFuture]:
        """The sends whose calls have not returned. Called under the lock."""
        return [*self._uncalled]

    def call(self, batch: Batch) -> None:
        outer, self._thread.calls = self._is_calling(), True
        try:
            batch.run_callbacks()
        finally:
            self._thread.calls = outer
            with self._changed:
                self._uncalled.difference_update(batch.futures)
                self._changed.notify_all()

    def await_returned(
        self,
        futures: Collection[SendFuture],
        timeout_s: float | None,
        *,
        under_way: Callable[[], Iterable[SendFuture]],
    ) -> bool:
        """Wait until these sends have ended and their calls have returned; return True if
        they have.

        Not in such a call: it would wait for itself, or for another one that waits for it.
        """

        def are_over() -> bool:
            return self._uncalled.union(under_way()).isdisjoint(futures)

        with self._changed:
            return self._is_calling() or self._changed.wait_for(are_over, timeout_s)

    def _is_calling(self) -> bool:
        return getattr(self._thread, "calls", False)
