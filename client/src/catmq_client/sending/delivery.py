"""One try to store one batch, and what follows from how it ended: see `after_failure`.

A batch that may be stored is repeated in its queue until delivery_timeout_ms, and ends with
SendOutcomeUnknown. Of a queue that refused the layout is looked up again; then a free batch
moves to another queue, a keyed one follows its slot, or waits where it is. A message that
was refused fails alone; the others of its batch go again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

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
from catmq_client.sending.receipts import Batch, Outcome, SendFuture
from catmq_client.sending.routing import Kind, Layouts, Routes, slot_of
from catmq_client.sending.send_request import (
    NODE_AWAY,
    NextStep,
    after_failure,
    errors_by_index,
    send,
)

log = logging.getLogger("catmq.producer")

COMPLAIN_EVERY_S = 30.0  # about the same closed queue


class Delivery:
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
        # queue → when; at worst two threads both say it
        self._complained: dict[int | None, float] = {}

    def step(self, buffer: QueueBuffer, batch: Batch) -> Batch | None:
        """Try once in a thread of the producer; then the batch has ended or is back in its
        buffer.

        Returns the batch whose callbacks are due. A bug ends the batch: its error is raised
        by the futures.
        """
        try:
            return self.attempt(buffer, batch)
        except Exception as error:
            log.exception("internal error while sending to %s", batch.topic)
            return self._give_up(buffer, batch, error)
        except BaseException as error:
            ended = self._give_up(buffer, batch, error)
            if ended is not None:
                self._accumulator.callbacks.call(ended)
            raise

    def attempt(self, buffer: QueueBuffer, batch: Batch) -> Batch | None:
        """Try once, as `step`, in a thread of the application.

        Every exception passes: it may have been raised into the thread, as Celery does for
        its soft time limit. The caller then has to `abandon` the batch.
        """
        self._leave_avoided_queue(buffer, batch)
        left_s = batch.expires_at - time.monotonic()
        if left_s <= 0:
            return self._end(buffer, batch, _final(batch, self._too_late(buffer, batch)))
        batch.tries += 1
        try:
            outcomes = send(
                self._transport,
                topic=batch.topic,
                messages=batch.messages,
                batch_id=batch.batch_id,
                timeout_s=min(self._timeout_s, left_s),
            )
        except CatmqError as error:
            return self._after_failure(buffer, batch, error)
        return self._after_answer(buffer, batch, outcomes)

    def log_failure(self, error: CatmqError) -> None:
        """Log at once, and each minute, that no broker answers: a send may wait for long."""
        if isinstance(error, ConnectFailed | AnswerLost):
            self._failures.failed(with_hint(error, self._transport))

    def _too_late(self, buffer: QueueBuffer, batch: Batch) -> DeliveryTimeout:
        limit = f"delivery_timeout_ms ({self._delivery_timeout_s:g} s)"
        if batch.tries:
            return DeliveryTimeout(
                f"{limit} is over; the last try ended with: {batch.last_error}"
            )
        last = (
            f"; the last try for its queue ended with: {buffer.last_error}"
            if buffer.last_error
            else ""
        )
        return DeliveryTimeout(f"it waited in the buffer for all of {limit}{last}")

    def abandon(self, buffer: QueueBuffer, own: Collection[SendFuture]) -> None:
        """Let go of the batch that this thread took from a buffer; see Accumulator.abandon."""
        batch = buffer.current
        error: CatmqError = SendError("not sent: its thread was interrupted")
        if batch is not None and batch.tries:
            error = SendOutcomeUnknown(
                "may or may not be stored: its thread was interrupted"
            )
        self._accumulator.abandon(buffer, own, error)

    def _give_up(
        self, buffer: QueueBuffer, batch: Batch, error: BaseException
    ) -> Batch | None:
        """End a batch whose try broke off, if its buffer still holds it: nobody may wait
        for ever.
        """
        with self._accumulator.lock:
            if buffer.current is not batch:
                return None
            if batch in buffer.batches:
                # Interrupted while it was put back: it goes again.
                buffer.current = None
                return None
        what = f"internal error of the client: {error!r}"
        ending = (
            SendOutcomeUnknown(f"may or may not be stored: {what}")
            if batch.tries
            else SendError(what)
        )
        ending.__cause__ = error
        return self._end(buffer, batch, ending)

    def _after_answer(
        self, buffer: QueueBuffer, batch: Batch, outcomes: Sequence[Outcome]
    ) -> Batch | None:
        refusals = [outcome for outcome in outcomes if isinstance(outcome, CatmqError)]
        if any(refusal.retriable for refusal in refusals):
            # What was stored stays stored: the same batch_id again only adds what is
            # missing.
            delay_s = buffer.backoff.next_s()
            if time.monotonic() + delay_s < batch.expires_at:
                batch.unknown = True
                self._accumulator.put_back(buffer, [batch], delay_s=delay_s)
                return None
        batch.finish(outcomes)
        buffer.last_error = ""
        self._failures.ended()
        self._accumulator.finished(buffer, batch)
        self._freshen(batch.topic)
        return batch

    def _after_failure(
        self, buffer: QueueBuffer, batch: Batch, error: CatmqError
    ) -> Batch | None:
        batch.unknown = batch.unknown or error.outcome_unknown
        batch.last_error = buffer.last_error = str(error)
        layout = self._layouts.known(batch.topic).layout
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
                buffer, batch, _final(batch, error) if batch.unknown else error
            )
        if follows is NextStep.MOVE and self._move(buffer, batch, error):
            return None
        return self._repeat(buffer, batch, error)

    def _repeat(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch | None:
        delay_s = buffer.backoff.next_s(error)
        if time.monotonic() + delay_s >= batch.expires_at:
            return self._end(buffer, batch, _final(batch, error))
        log.debug("%s queue %s: try %d: %s", batch.topic, batch.queue, batch.tries, error)
        self.log_failure(error)
        if buffer.kind == Kind.KEYED and error.code == "queue_not_writable":
            self._tell_closed(batch)
        self._accumulator.put_back(buffer, [batch], delay_s=delay_s)
        return None

    def _tell_closed(self, batch: Batch) -> None:
        """Say at once, and now and then, why sends wait that nothing but an operator can
        help.
        """
        now = time.monotonic()
        if now - self._complained.get(batch.queue, -COMPLAIN_EVERY_S) < COMPLAIN_EVERY_S:
            return
        self._complained[batch.queue] = now
        log.warning(
            "Queue %s of topic %s is closed, and the topic keeps keys in their queue "
            "(keyed: strict): "
            "messages with its keys wait, at most %.0f s more. Open it "
            "(catmq topic queue %s %d --state read_write), or allow other queues "
            "(catmq topic set %s --keyed available).",
            batch.queue, batch.topic, batch.expires_at - now, batch.topic, batch.queue, batch.topic,
        )  # fmt: skip

    def _move(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> bool:
        """To another queue, a free batch to any, a keyed one where its slots now are; False
        if there is none.

        A queue that is not found is no different: the topic may have been made anew.
        """
        routes = self._layouts.known(batch.topic)
        layout = self._layouts.refresh(batch.topic, after_refusal=True)
        with self._accumulator.lock:
            routes.avoid(batch.queue, whole_node=error.code in NODE_AWAY)
            if layout is not None:
                self._accumulator.relayout(routes, layout)
            if buffer.kind == Kind.KEYED:
                # Somebody else may have fetched the layout that says so.
                if not _is_homeless(batch, routes):
                    return False
                batch.unknown = False
                self._accumulator.relayout(routes, routes.layout, refused=(buffer, batch))
                return True
            target = routes.elsewhere(batch.moved_from | {batch.queue})
            if target is None:
                batch.moved_from.clear()
                return False
            batch.move(target)
            batch.unknown = False
            self._accumulator.put_back(buffer, [batch], delay_s=0.0)
            return True

    def _split(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch | None:
        """One wrong message must not fail its neighbours: they go again, under a new
        batch_id.
        """
        count, wrong = len(batch.messages), errors_by_index(error, len(batch.messages))
        ended = None
        if wrong:
            good = [i for i in range(count) if i not in wrong]
            parts = [batch.part(good)] if good else []
            ended = batch.part(sorted(wrong))
            ended.fail(error)
        else:
            parts = [
                batch.part([*range(count // 2)]),
                batch.part([*range(count // 2, count)]),
            ]
        batch.let_go()
        self._accumulator.put_back(buffer, parts, delay_s=0.0, ended=ended)
        return ended

    def _end(self, buffer: QueueBuffer, batch: Batch, error: CatmqError) -> Batch:
        batch.fail(error)
        self._accumulator.finished(buffer, batch)
        return batch

    def _leave_avoided_queue(self, buffer: QueueBuffer, batch: Batch) -> None:
        """A free batch does not go to a queue that has just refused another one."""
        if buffer.kind != Kind.FREE or batch.tries:
            return
        with self._accumulator.lock:
            routes = self._layouts.known(batch.topic)
            if routes.layout.slots and not routes.usable(batch.queue):
                target = routes.elsewhere({batch.queue})
                if target is not None:
                    batch.move(target)

    def _freshen(self, topic: str) -> None:
        layout = self._layouts.refresh(topic, after_refusal=False)
        if layout is not None:
            self._accumulator.relayout(self._layouts.known(topic), layout)


def _is_homeless(batch: Batch, routes: Routes) -> bool:
    """Return True if the layout no longer keeps all keys of the batch in its queue."""
    slots = routes.layout.slots
    return bool(slots) and any(
        slots[slot_of(message["key"])] != batch.queue for message in batch.messages
    )


def _final(batch: Batch, error: CatmqError) -> CatmqError:
    """The end of a batch that ran out of time or tries, told apart by whether it may be
    stored.
    """
    tries = "1 try" if batch.tries == 1 else f"{batch.tries} tries"
    after = f"after {tries}" if batch.tries else "not tried yet"
    detail = f"{batch.topic}, queue {batch.queue}, {after}: {error}"
    if batch.unknown:
        final: CatmqError = SendOutcomeUnknown(
            f"may or may not be stored: {detail}", status=error.status
        )
    else:
        final = DeliveryTimeout(f"not stored: {detail}", status=error.status)
    final.__cause__ = error
    return final
