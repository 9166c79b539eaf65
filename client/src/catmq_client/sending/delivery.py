"""One try to store one batch, and what follows from how it ended.

answer                          the receipts
unknown (time-out, cut off,     same batch_id, same queue, until delivery_timeout_ms, then
  outcome_unknown, 502, 504)      SendOutcomeUnknown; the batch never moves again (unless the
                                  topic says on_unknown: resend)
this queue refused              the layout is looked up again; then a free batch moves to another
                                  queue, a keyed one follows its slot, or waits where it is
this message refused            it fails alone; the others of its batch go again
broker or node away             again after a delay
anything else                   fails
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from enum import Enum

from catmq_client.errors import (
    CatmqError,
    DeliveryTimeout,
    InvalidRequest,
    OptionError,
    SendError,
    SendOutcomeUnknown,
    ServerFailed,
)
from catmq_client.http.transport import Transport
from catmq_client.options import ProducerOptions
from catmq_client.sending.accumulator import Lane, SendBuffer
from catmq_client.sending.receipts import Batch, Outcome
from catmq_client.sending.routing import Kind, Layouts, Routes, slot_of
from catmq_client.sending.send_request import send

log = logging.getLogger("catmq.producer")

# Refusals of a queue, before anything was stored.
QUEUE_REFUSED = {"queue_not_writable", "node_unavailable", "queue_not_found", "node_full"}
# A bug at the broker may be met by every try: only so many.
TRIES_OF_A_BUG = 3
COMPLAIN_EVERY_S = 30.0  # about the same closed queue
_INDEX = re.compile(r"messages\[(\d+)\]")


class Next(Enum):
    """Next step for a batch after a failed try."""

    REPEAT = "repeat"
    MOVE = "move"
    SPLIT = "split"
    FAIL = "fail"


def after_failure(batch: Batch, error: CatmqError, *, kind: Kind, resend_unknown: bool) -> Next:
    """Choose the next step after `error`; `batch.unknown` already counts this try. Pure."""
    stored_for_sure_not = not batch.unknown
    if isinstance(error, InvalidRequest | OptionError) and len(batch.messages) > 1 and stored_for_sure_not:
        return Next.SPLIT
    if isinstance(error, ServerFailed):
        return Next.REPEAT if batch.tries < TRIES_OF_A_BUG else Next.FAIL
    if error.code in QUEUE_REFUSED:
        if stored_for_sure_not or resend_unknown:
            return _after_queue_refused(error, kind)
        return Next.REPEAT
    return Next.REPEAT if error.retriable or error.outcome_unknown else Next.FAIL


def _after_queue_refused(error: CatmqError, kind: Kind) -> Next:
    if kind == Kind.NAMED:
        return Next.REPEAT if error.retriable else Next.FAIL
    return Next.MOVE


class Delivery:
    """Delivers the batches of one producer."""

    def __init__(
        self, *, transport: Transport, buffer: SendBuffer, layouts: Layouts, options: ProducerOptions
    ) -> None:
        self._transport = transport
        self._buffer = buffer
        self._layouts = layouts
        self._timeout_s = options.request_timeout_ms / 1000
        self._complained: dict[int | None, float] = {}  # queue → when; at worst two threads both say it

    def step(self, lane: Lane, batch: Batch) -> Batch | None:
        """One try; afterwards the batch has ended or is back in the buffer, and its lane is free.

        Returns the batch whose callbacks are due. What interrupts the thread (Ctrl-C) is raised, but
        no bug: the batch may hold the messages of others, and they are told by their futures.
        """
        try:
            return self._try(lane, batch)
        except Exception as error:
            log.exception("sending to %s met a bug", batch.topic)
            return self._give_up(lane, batch, error)
        except BaseException as error:
            ended = self._give_up(lane, batch, error)
            if ended is not None:
                self._buffer.callbacks.call(ended)
            raise

    def _try(self, lane: Lane, batch: Batch) -> Batch | None:
        self._leave_avoided_queue(lane, batch)
        left_s = batch.expires_at - time.monotonic()
        if left_s <= 0:
            told = f"; the last one ended with: {batch.last_error}" if batch.last_error else ""
            late = DeliveryTimeout(f"no try was left within delivery_timeout_ms{told}")
            return self._end(lane, batch, _final(batch, late))
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
            return self._after_failure(lane, batch, error)
        return self._after_answer(lane, batch, outcomes)

    def _give_up(self, lane: Lane, batch: Batch, error: BaseException) -> Batch | None:
        """Ends a batch whose try broke off, if its lane still holds it: nobody may wait for ever."""
        with self._buffer.lock:
            if lane.current is not batch:
                return None
            if batch in lane.batches:
                # Interrupted while it was put back: it goes again.
                lane.current = None
                return None
        what = f"the client failed: {error!r}"
        ending = SendOutcomeUnknown(f"may or may not be stored: {what}") if batch.tries else SendError(what)
        ending.__cause__ = error
        return self._end(lane, batch, ending)

    def _after_answer(self, lane: Lane, batch: Batch, outcomes: Sequence[Outcome]) -> Batch | None:
        refusals = [outcome for outcome in outcomes if isinstance(outcome, CatmqError)]
        if any(refusal.retriable for refusal in refusals):
            # What was stored stays stored: the same batch_id again only adds what is missing.
            delay_s = lane.backoff.next_s()
            if time.monotonic() + delay_s < batch.expires_at:
                batch.unknown = True
                self._buffer.put_back(lane, [batch], delay_s=delay_s)
                return None
        batch.finish(outcomes)
        self._buffer.finished(lane, batch)
        self._freshen(batch.topic)
        return batch

    def _after_failure(self, lane: Lane, batch: Batch, error: CatmqError) -> Batch | None:
        batch.unknown = batch.unknown or error.outcome_unknown
        batch.last_error = str(error)
        layout = self._layouts.known(batch.topic).layout
        follows = after_failure(batch, error, kind=lane.kind, resend_unknown=layout.resend_unknown)
        if follows is Next.SPLIT:
            return self._split(lane, batch, error)
        if follows is Next.FAIL:
            return self._end(lane, batch, _final(batch, error) if batch.unknown else error)
        if follows is Next.MOVE and self._move(lane, batch, error):
            return None
        return self._repeat(lane, batch, error)

    def _repeat(self, lane: Lane, batch: Batch, error: CatmqError) -> Batch | None:
        delay_s = lane.backoff.next_s(error)
        if time.monotonic() + delay_s >= batch.expires_at:
            return self._end(lane, batch, _final(batch, error))
        log.debug("%s queue %s: try %d: %s", batch.topic, batch.queue, batch.tries, error)
        if lane.kind == Kind.KEYED and error.code == "queue_not_writable":
            self._tell_closed(batch)
        self._buffer.put_back(lane, [batch], delay_s=delay_s)
        return None

    def _tell_closed(self, batch: Batch) -> None:
        """Says at once, and now and then, why sends wait that nothing but an operator can help."""
        now = time.monotonic()
        if now - self._complained.get(batch.queue, -COMPLAIN_EVERY_S) < COMPLAIN_EVERY_S:
            return
        self._complained[batch.queue] = now
        log.warning(
            "Queue %s of topic %s is closed, and the topic keeps keys in their queue (keyed: strict): "
            "messages with its keys wait, at most %.0f s more. Open it "
            "(catmq topic queue %s %d --state read_write), or let them go elsewhere "
            "(catmq topic set %s --keyed available).",
            batch.queue, batch.topic, batch.expires_at - now, batch.topic, batch.queue, batch.topic,
        )  # fmt: skip

    def _move(self, lane: Lane, batch: Batch, error: CatmqError) -> bool:
        """To another queue, a free batch to any, a keyed one where its slots now are; False if there is none.

        A queue that is not found is no different: the topic may have been made anew.
        """
        routes = self._layouts.known(batch.topic)
        layout = self._layouts.freshen(batch.topic, suspicious=True)
        with self._buffer.lock:
            routes.avoid(batch.queue, whole_node=error.code in ("node_unavailable", "node_full"))
            if layout is not None:
                self._buffer.relayout(routes, layout)
            if lane.kind == Kind.KEYED:
                # Somebody else may have fetched the layout that says so.
                if not _is_homeless(batch, routes):
                    return False
                batch.unknown = False
                self._buffer.relayout(routes, routes.layout, refused=(lane, batch))
                return True
            target = routes.elsewhere(batch.moved_from | {batch.queue})
            if target is None:
                batch.moved_from.clear()
                return False
            batch.move(target)
            batch.unknown = False
            self._buffer.put_back(lane, [batch], delay_s=0.0)
            return True

    def _split(self, lane: Lane, batch: Batch, error: CatmqError) -> Batch | None:
        """One wrong message must not fail its neighbours: they go again, under a new batch_id."""
        count = len(batch.messages)
        wrong = {int(found[1]) for e in error.errors if (found := _INDEX.match(e.field))}
        wrong = {i for i in wrong if i < count}
        ended = None
        if wrong:
            good = [i for i in range(count) if i not in wrong]
            parts = [batch.part(good)] if good else []
            ended = batch.part(sorted(wrong))
            ended.fail(error)
        else:
            parts = [batch.part([*range(count // 2)]), batch.part([*range(count // 2, count)])]
        batch.let_go()
        self._buffer.put_back(lane, parts, delay_s=0.0, ended=ended)
        return ended

    def _end(self, lane: Lane, batch: Batch, error: CatmqError) -> Batch:
        batch.fail(error)
        self._buffer.finished(lane, batch)
        return batch

    def _leave_avoided_queue(self, lane: Lane, batch: Batch) -> None:
        """A free batch does not go to a queue that has just refused another one."""
        if lane.kind != Kind.FREE or batch.tries:
            return
        with self._buffer.lock:
            routes = self._layouts.known(batch.topic)
            if routes.layout.slots and not routes.usable(batch.queue):
                target = routes.elsewhere({batch.queue})
                if target is not None:
                    batch.move(target)

    def _freshen(self, topic: str) -> None:
        layout = self._layouts.freshen(topic, suspicious=False)
        if layout is not None:
            self._buffer.relayout(self._layouts.known(topic), layout)


def _is_homeless(batch: Batch, routes: Routes) -> bool:
    """Return True if the layout no longer keeps all keys of the batch in its queue."""
    slots = routes.layout.slots
    return bool(slots) and any(slots[slot_of(message["key"])] != batch.queue for message in batch.messages)


def _final(batch: Batch, error: CatmqError) -> CatmqError:
    """The end of a batch that ran out of time or tries, told apart by whether it may be stored."""
    what = f"{batch.topic}, queue {batch.queue}, after {batch.tries} tries: {error}"
    if batch.unknown:
        final: CatmqError = SendOutcomeUnknown(f"may or may not be stored: {what}", status=error.status)
    else:
        final = DeliveryTimeout(f"not stored: {what}", status=error.status)
    final.__cause__ = error
    return final
