"""A member of a share group that leases messages only on demand, from topics that may change
at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from catmq_client.errors import CatmqError, Unavailable
from catmq_client.options import ShareConsumerOptions, check_options
from catmq_client.reading.owned import OwnedQueue
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.dropping import DroppingReporter
from catmq_client.sharing.leases import LeaseBook
from catmq_client.sharing.messages import ShareMessage
from catmq_client.sharing.puller import Plan, Puller
from catmq_client.sharing.runs import HeldRun, run_key

# get() waits this long for a broker that does not answer.
GET_WITHIN_S = 10.0
FLUSH_WITHIN_S = 5.0
# A pull waits this long at the broker. It is shorter than usual, because there may be no room
# any more for the messages of a pull that waited.
PULL_WAIT_MS = 5_000


class DemandBook(LeaseBook):
    """A lease book without read-ahead: it leases what the application demands. Each
    acknowledgement is reported at once.
    """

    def __init__(self, options: ShareConsumerOptions) -> None:
        super().__init__(options)
        # True while get() waits: then pulls ask brokers to answer at once.
        self.needs_answer = False
        # Number of pulls that were answered at once and brought nothing.
        self.empty_answers = 0
        # Called under the lock when messages have arrived, or the membership has ended.
        self.on_arrival: Callable[[], object] = lambda: None

    def room(self) -> int:
        if self.away_since is not None:
            return 0
        waiting = sum(run.waiting for run in self.runs.values())
        return max(
            0,
            min(self.demand - waiting, self.share_options.max_in_flight - self.in_flight()),
        )

    def _idle_capacity(self) -> int:
        return self.demand if self.away_since is None else 0

    def take_over(self, entries: Iterable[Mapping[str, Any]], *, sent_at: float) -> bool:
        has_new = super().take_over(entries, sent_at=sent_at)
        self.on_arrival()
        return has_new

    def fail_with(self, error: CatmqError) -> None:
        super().fail_with(error)
        self.on_arrival()

    def _after_begin_recorded(self, run: HeldRun) -> None:
        super()._after_begin_recorded(run)
        self.on_arrival()

    def _notify_progress(self, owned: OwnedQueue) -> None:
        super()._notify_progress(owned)
        # At once, not at the next interval.
        self.changed.reports.notify_all()


class DemandPuller(Puller):
    """Pulls as many messages as the book has room for, from topics that can be changed."""

    _book: DemandBook

    def select_topics(self, topics: Sequence[str]) -> bool:
        """Pull from these topics from now on, in this order of preference. Return True if the
        set of topics has changed.
        """
        has_changed = set(topics) != set(self._topics)
        self._topics = [*topics]
        return has_changed

    def _wait_ms(self) -> int:
        return 0 if self._book.needs_answer else super()._wait_ms()

    def _take_over(
        self, plan: Plan, answer: dict[str, Any], *, ticket: int, sent_at: float
    ) -> None:
        with self._book.changed:
            if not plan.wait_ms and not answer["runs"] and ticket == self._ticket:
                self._book.empty_answers += 1
                self._book.needs_answer = False
            # This pull was abandoned and no other follows, which would recover its runs. So
            # they are returned here.
            is_stray = ticket != self._ticket and not self._in_pull
            stray = [
                run
                for run in answer["runs"]
                if is_stray and run_key(run) not in self._book.runs
            ]
        super()._take_over(plan, answer, ticket=ticket, sent_at=sent_at)
        self._return_runs(plan.consumer_id, stray)
        with self._book.changed:
            self._book.changed.messages.notify_all()


class QueueReader(ShareConsumer):
    """Leases messages of selected topics, as many as the application demands at the time.

    take() and get() must be called in the same thread, acknowledgements and wake() in any.
    """

    _state: DemandBook
    _puller: DemandPuller
    _puller_class = DemandPuller
    _reporter_class = DroppingReporter

    def _configure(self, options: Mapping[str, Any]) -> None:
        # An interval of 1 ms: an acknowledgement is sent at once. Those that come while a
        # request is in flight share the next request.
        defaults = {
            "auto_accept": False,
            "auto_commit_interval_ms": 1,
            "max_in_flight": 10_000,
            "fetch_max_wait_ms": PULL_WAIT_MS,
        }
        self.options = check_options(ShareConsumerOptions, {**defaults, **options})
        self._state = DemandBook(self.options)
        self._is_woken = False

    def select_topics(self, topics: Sequence[str]) -> None:
        """Lease only from these topics from now on, in this order of preference. Messages of
        other topics that wait for the application are released.
        """
        with self._state.changed:
            if self._puller.select_topics(topics):
                self._release_waiting(lambda topic: topic not in topics)
                self._puller.interrupt()

    def release_topics(self, topics: Sequence[str]) -> None:
        """Release messages of these topics that wait for the application."""
        with self._state.changed:
            self._release_waiting(lambda topic: topic in topics)

    def take(self, limit: int, timeout_s: float) -> list[ShareMessage]:
        """Return up to `limit` messages as soon as there are any; [] after `timeout_s`, or
        at wake().

        Raises the error that ended the membership.
        """
        return self._take_until(limit, lambda: self._is_woken, timeout_s)

    def get(self) -> ShareMessage | None:
        """Return a message, or None if the topics are empty. Raises Unavailable if no broker
        answers.
        """
        book = self._state
        with book.changed:
            book.needs_answer = True
            answers_before = book.empty_answers
            # A pull in flight may wait at the broker; the next one does not.
            self._puller.interrupt()
        try:
            messages = self._take_until(
                1, lambda: book.empty_answers > answers_before, GET_WITHIN_S
            )
        finally:
            book.needs_answer = False
        if not messages and book.empty_answers == answers_before:
            raise Unavailable(f"no broker answered within {GET_WITHIN_S:.0f} s")
        return messages[0] if messages else None

    def request_messages(self, limit: int, on_arrival: Callable[[], object]) -> None:
        """Lease up to `limit` messages in the background. `on_arrival` is called in any thread
        when messages have arrived; take_arrived() returns them.
        """
        self._start_or_resume()
        book = self._state
        with book.changed:
            book.on_arrival = on_arrival
            if book.demand != limit:
                book.demand = limit
                book.changed.room.notify_all()
                book.changed.reports.notify_all()

    def has_arrived(self) -> bool:
        """Return True if take_arrived() would return messages or raise an error."""
        book = self._state
        with book.changed:
            has_messages = (
                book.demand > 0
                and book.has_lease()
                and any(run.can_hand_out() for run in book.runs.values())
            )
            return has_messages or book.fatal is not None

    def take_arrived(self) -> list[ShareMessage]:
        """Return the messages that request_messages() has leased. Raises the error that ended
        the membership.
        """
        book = self._state
        with book.changed:
            self._raise_if_ended()
            handed_out = book.hand_out(book.demand) if book.demand else []
            # Under the same lock: otherwise the puller would see the room of these messages
            # and lease more.
            book.demand -= len(handed_out)
            return [cast(ShareMessage, message) for _, message in handed_out]

    def wake(self) -> None:
        """Let take() return at once."""
        with self._state.changed:
            self._is_woken = True
            self._state.changed.messages.notify_all()

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Report all outcomes now. Return True if brokers have confirmed them in time."""
        return self._renewer.flush(within_s)

    def _release_waiting(self, is_selected: Callable[[str], bool]) -> None:
        """Release the waiting messages of the selected topics. The caller holds the lock."""
        for run in [*self._state.runs.values()]:
            if is_selected(run.subscription) and (waiting := run.waiting_offsets()):
                self._state.give_back(run, waiting)

    def _take_until(
        self, limit: int, is_over: Callable[[], bool], timeout_s: float
    ) -> list[ShareMessage]:
        """Return up to `limit` messages as soon as there are any; [] after `timeout_s`, or when
        `is_over()`.
        """
        self._start_or_resume()
        book, deadline = self._state, time.monotonic() + timeout_s
        with book.changed:
            book.demand = limit
            book.changed.room.notify_all()
            try:
                while True:
                    self._raise_if_ended()
                    handed_out = book.hand_out(limit)
                    wait_s = deadline - time.monotonic()
                    if handed_out or wait_s <= 0 or is_over():
                        return [cast(ShareMessage, message) for _, message in handed_out]
                    book.changed.messages.wait(wait_s)
            finally:
                # Under the same lock: otherwise the puller would see the room of these
                # messages and lease more.
                book.demand, self._is_woken = 0, False
                book.away_since = time.monotonic()
