"""A try to store a batch, and the next step after it; see `after_failure`.

A batch that may be stored is repeated in its queue until delivery_timeout_ms, and ends with
SendOutcomeUnknown. When a queue refuses, the layout is looked up again. Then a free batch
moves to another queue; a keyed batch moves with its slots, or waits for its queue. A
message that is refused fails alone; the others of its batch are sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    ConnectFailed,
    DeliveryTimeout,
    SendError,
    SendOutcomeUnknown,
)
from catmq_client.http.failure_log import FailureLog, with_hint
from catmq_client.http.transport import Transport
from catmq_client.options import ProducerOptions
from catmq_client.sending.accumulator import Accumulator, QueueBuffer
from catmq_client.sending.receipts import Batch, Pending, Receipt
from catmq_client.sending.routing import Kind, Layouts, slot_of
from catmq_client.sending.send_request import (
    NODE_AWAY,
    NextStep,
    after_failure,
    errors_by_index,
    send,
)

log: logging.Logger = logging.getLogger("catmq.producer")

# Pause between warnings about the same closed queue.
WARN_EVERY_S = 30.0


class Delivery:
    """Sends the batches of an accumulator."""

    def __init__(
        self,
        *,
        transport: Transport,
        accumulator: Accumulator,
        layouts: Layouts,
        options: ProducerOptions,
    ) -> None:
        self._transport = transport
        self._accumulator = accumulator
        self._layouts = layouts
        self._timeout_s = options.request_timeout_ms / 1000
        self._delivery_timeout_s = options.delivery_timeout_ms / 1000
        self._failures = FailureLog(log, "sending, which is repeated,")
        # Time of the last warning by queue. Not locked: two threads may both warn.
        self._warned_at: dict[int | None, float] = {}

    def attempt_in_sender(self, buffer: QueueBuffer, batch: Batch) -> Batch | None:
        """Try a batch once, in a sender thread. Return it if it ended, so that its callbacks
        run.

        Otherwise the batch is back in its buffer. An internal error ends the batch and is
        raised by its futures; the sender thread goes on.
        """
        try:
            return self.attempt_in_caller(buffer, batch)
        except Exception as error:
            log.exception("internal error while sending to %s", batch.topic)
            return self._end_interrupted(buffer, batch, error)
        except BaseException as error:
            ended = self._end_interrupted(buffer, batch, error)
            # The caller gets no result from here, so it could not run the callbacks.
            if ended is not None:
                self._accumulator.callbacks.run(ended)
            raise

    def attempt_in_caller(self, buffer: QueueBuffer, batch: Batch) -> Batch | None:
        """Try a batch once, in a thread of the application; see attempt_in_sender().

        Unlike there, every exception passes: it may have been raised into the thread, as
        Celery does for its soft time limit. The caller then has to `abandon` the batch.
        """
        self._leave_refusing_queue(buffer, batch)
        remaining_s = batch.expires_at - time.monotonic()
        if remaining_s <= 0:
            return self._end(
                buffer, batch, _final_error(batch, self._timeout_error(buffer, batch))
            )
        # Counted before the request: if the thread is interrupted in it, the batch may be
        # stored.
        batch.tries += 1
        try:
            outcomes = send(
                self._transport,
                topic=batch.topic,
                messages=batch.messages,
                batch_id=batch.batch_id,
                timeout_s=min(self._timeout_s, remaining_s),
            )
        except CatmqError as error:
            return self._after_failure(buffer, batch, error)
        # Usually all are receipts, and a look at their types is enough.
        if {*map(type, outcomes)} != {Receipt} and any(
            isinstance(outcome, CatmqError) and outcome.retriable for outcome in outcomes
        ):
            # A repeat under the same batch_id stores only the messages that are missing.
            delay_s = buffer.backoff.next_s()
            if time.monotonic() + delay_s < batch.expires_at:
                # Some messages may be stored by now, so queue and batch_id stay.
                batch.unknown = True
                self._accumulator.put_back(buffer, [batch], delay_s=delay_s)
                return None
        batch.set_outcomes(outcomes)
        buffer.last_error = ""
        self._failures.ended()
        self._accumulator.finish_batch(buffer, batch)
        layout = self._layouts.refresh(batch.topic, after_refusal=False)
        if layout is not None:
            self._accumulator.apply_layout(self._layouts.cached(batch.topic), layout)
        return batch

    def log_failure(self, error: CatmqError) -> None:
        """Log that no broker answers, at once and every minute: a send may wait for long."""
        if isinstance(error, ConnectFailed | AnswerLost):
            self._failures.failed(with_hint(error, self._transport))

    def _timeout_error(self, buffer: QueueBuffer, batch: Batch) -> DeliveryTimeout:
        limit = f"delivery_timeout_ms ({self._delivery_timeout_s:g} s)"
        if batch.tries:
            return DeliveryTimeout(
                f"{limit} is over; the last try ended with: {batch.last_error}"
            )
        earlier_failure = (
            f"; the last try for its queue ended with: {buffer.last_error}"
            if buffer.last_error
            else ""
        )
        return DeliveryTimeout(
            f"it waited in the buffer for all of {limit}{earlier_failure}"
        )

    def abandon(self, buffer: QueueBuffer, own: Collection[Pending]) -> None:
        """Give up the batch that this thread took from a buffer; see Accumulator.abandon."""
        batch = buffer.current
        error: CatmqError = SendError("not sent: its thread was interrupted")
        if batch is not None and batch.tries:
            error = SendOutcomeUnknown(
                "may or may not be stored: its thread was interrupted"
            )
        self._accumulator.abandon(buffer, own, error)

    def _end_interrupted(
        self, buffer: QueueBuffer, batch: Batch, error: BaseException
    ) -> Batch | None:
        """End a batch whose try was interrupted, if its buffer still holds it.

        Without an end, its callers would wait forever.
        """
        with self._accumulator.lock:
            if buffer.current is not batch:
                return None
            if batch in buffer.batches:
                # The interrupt came in put_back(): the batch is queued and is tried again.
                buffer.current = None
                return None
        detail = f"internal error of the client: {error!r}"
        final_error = (
            SendOutcomeUnknown(f"may or may not be stored: {detail}")
            if batch.tries
            else SendError(detail)
        )
        final_error.__cause__ = error
        return self._end(buffer, batch, final_error)

    def _after_failure(
        self, buffer: QueueBuffer, batch: Batch, error: CatmqError
    ) -> Batch | None:
        """Decide what follows a failed try. Return the batch if it has ended."""
        batch.unknown = batch.unknown or error.outcome_unknown
        batch.last_error = buffer.last_error = str(error)
        layout = self._layouts.cached(batch.topic).layout
        follows = after_failure(
            error,
            kind=buffer.kind,
            messages=len(batch.messages),
            tries=batch.tries,
            unknown=batch.unknown,
            resend_unknown=layout.resend_unknown,
        )
        if follows is NextStep.SPLIT:
            return self._split(buffer, batch, error)
        if follows is NextStep.FAIL:
            return self._end(
                buffer, batch, _final_error(batch, error) if batch.unknown else error
            )
        if follows is NextStep.MOVE and self._move(buffer, batch, error):
            return None
        return self._repeat(buffer, batch, error)

    def _repeat(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch | None:
        """Put a batch back to be tried after a delay, or end it if its time is over."""
        delay_s = buffer.backoff.next_s(error)
        if time.monotonic() + delay_s >= batch.expires_at:
            return self._end(buffer, batch, _final_error(batch, error))
        log.debug("%s queue %s: try %d: %s", batch.topic, batch.queue, batch.tries, error)
        self.log_failure(error)
        if buffer.kind == Kind.KEYED and error.code == "queue_not_writable":
            self._warn_of_closed_queue(batch)
        self._accumulator.put_back(buffer, [batch], delay_s=delay_s)
        return None

    def _warn_of_closed_queue(self, batch: Batch) -> None:
        """Warn, now and then, that sends wait until an operator opens their queue."""
        now = time.monotonic()
        if now - self._warned_at.get(batch.queue, -WARN_EVERY_S) < WARN_EVERY_S:
            return
        self._warned_at[batch.queue] = now
        log.warning(
            "Queue %s of topic %s is closed, and the topic keeps keys in their queue "
            "(keyed: strict): "
            "messages with its keys wait, at most %.0f s more. Open it "
            "(catmq topic queue %s %d --state read_write), or allow other queues "
            "(catmq topic set %s --keyed available).",
            batch.queue, batch.topic, batch.expires_at - now, batch.topic, batch.queue, batch.topic,
        )  # fmt: skip

    def _move(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> bool:
        """Move a refused batch to another queue. Return False if there is none.

        A free batch may go to any queue, a keyed batch only where its slots now are. A
        queue that was not found is treated alike: the topic may have been deleted and
        created again.
        """
        routes = self._layouts.cached(batch.topic)
        layout = self._layouts.refresh(batch.topic, after_refusal=True)
        with self._accumulator.lock:
            routes.avoid(batch.queue, whole_node=error.code in NODE_AWAY)
            if layout is not None:
                self._accumulator.apply_layout(routes, layout)
            if buffer.kind == Kind.KEYED:
                # Compare with the layout in use, not the result of refresh(): another thread
                # may have fetched the newer layout.
                slots = routes.layout.slots
                slots_stay = not slots or all(
                    slots[slot_of(m["key"])] == batch.queue for m in batch.messages
                )
                if slots_stay:
                    return False
                batch.unknown = False
                self._accumulator.apply_layout(
                    routes, routes.layout, refused=(buffer, batch)
                )
                return True
            target = routes.another_queue(batch.moved_from | {batch.queue})
            if target is None:
                # Every other queue has refused, so the next tries may choose any of them
                # again.
                batch.moved_from.clear()
                return False
            batch.move_to(target)
            batch.unknown = False
            self._accumulator.put_back(buffer, [batch], delay_s=0.0)
            return True

    def _split(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch | None:
        """Split a batch so that a wrong message does not fail the others.

        The messages that the error names fail, and the rest is sent again. If it names
        none, both halves are sent again. The parts have new batch_ids. Returns the part
        that failed.
        """
        count, errors = len(batch.messages), errors_by_index(error, len(batch.messages))
        failed_part = None
        if errors:
            valid_indexes = [i for i in range(count) if i not in errors]
            parts = [batch.split_off(valid_indexes)] if valid_indexes else []
            failed_part = batch.split_off(sorted(errors))
            failed_part.fail(error)
        else:
            parts = [
                batch.split_off([*range(count // 2)]),
                batch.split_off([*range(count // 2, count)]),
            ]
        # Waiting threads look up which batch their future belongs to now.
        batch.wake_waiters()
        self._accumulator.put_back(buffer, parts, delay_s=0.0, ended=failed_part)
        return failed_part

    def _end(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch:
        batch.fail(error)
        self._accumulator.finish_batch(buffer, batch)
        return batch

    def _leave_refusing_queue(self, buffer: QueueBuffer, batch: Batch) -> None:
        """Move an untried free batch away from a queue that has just refused another batch."""
        if buffer.kind != Kind.FREE or batch.tries:
            return
        with self._accumulator.lock:
            routes = self._layouts.cached(batch.topic)
            if routes.layout.slots and not routes.is_usable(batch.queue):
                target = routes.another_queue({batch.queue})
                if target is not None:
                    batch.move_to(target)


def _final_error(batch: Batch, error: CatmqError) -> CatmqError:
    """Return the error that ends a batch: SendOutcomeUnknown if it may be stored.

    Otherwise it is DeliveryTimeout. The detail has the tries and the last error.
    """
    tries = "1 try" if batch.tries == 1 else f"{batch.tries} tries"
    tries_made = f"after {tries}" if batch.tries else "not tried yet"
    detail = f"{batch.topic}, queue {batch.queue}, {tries_made}: {error}"
    if batch.unknown:
        final_error: CatmqError = SendOutcomeUnknown(
            f"may or may not be stored: {detail}", status=error.status
        )
    else:
        final_error = DeliveryTimeout(f"not stored: {detail}", status=error.status)
    final_error.__cause__ = error
    return final_error
