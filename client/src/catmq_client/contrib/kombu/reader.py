"""A member of a share group that leases only what it is asked for, of topics that change;
see QueueReader.
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
from catmq_client.sharing.renewer import Renewer
from catmq_client.sharing.runs import HeldRun, run_key

# How long get() waits for a broker that does not answer, s.
GET_WITHIN_S = 10.0
FLUSH_WITHIN_S = 5.0
# A pull waits so long at the broker, ms: what it brings may come when there is no room any
# more.
PULL_WAIT_MS = 5_000


class DemandBook(LeaseBook):
    """Holds nothing ahead of the application, and tells of each acknowledgement at once."""

    def __init__(self, options: ShareConsumerOptions) -> None:
        super().__init__(options)
        # get() waits: pulls are to be answered at once; so many were, and brought nothing.
        self.hasty = False
        self.empty_answers = 0
        # Called under the lock when messages have come, or the membership has ended.
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

    def take_over(self, items: Iterable[Mapping[str, Any]], *, sent_at: float) -> bool:
        brought = super().take_over(items, sent_at=sent_at)
        self.on_arrival()
        return brought

    def fail_with(self, error: CatmqError) -> None:
        super().fail_with(error)
        self.on_arrival()

    def _after_begin_recorded(self, run: HeldRun) -> None:
        super()._after_begin_recorded(run)
        self.on_arrival()

    def _notify_progress(self, owned: OwnedQueue) -> None:
        super()._notify_progress(owned)
        self.changed.reports.notify_all()


class DemandPuller(Puller):
    """Pulls what the book has room for, from `topics`."""

    topics: list[str]
    _book: DemandBook

    def choose(self, topics: Sequence[str]) -> bool:
        """Pull from these topics from now on, the first preferred; return True if they are
        others.
        """
        is_other = set(topics) != set(self._topics)
        self._topics = [*topics]
        return is_other

    def _wait_ms(self) -> int:
        return 0 if self._book.hasty else super()._wait_ms()

    def _take_over(
        self, plan: Plan, answer: dict[str, Any], *, ticket: int, sent_at: float
    ) -> None:
        with self._book.changed:
            if not plan.wait_ms and not answer["runs"] and ticket == self._ticket:
                self._book.empty_answers += 1
                self._book.hasty = False
            # A pull that was given up while none follows: nobody would recover what it
            # brought.
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
    """Leases messages of chosen topics, as many as are wanted, when they are wanted.

    take() and get() are called in one thread, ack() and wake() in any.
    """

    _state: DemandBook

    def _configure(self, options: Mapping[str, Any]) -> None:
        # An acknowledgement is sent at once: those that come while one is under way go
        # together.
        given = {
            "auto_accept": False,
            "auto_commit_interval_ms": 1,
            "max_in_flight": 10_000,
            **options,
        }
        given = {"fetch_max_wait_ms": PULL_WAIT_MS, **given}
        self.options = check_options(ShareConsumerOptions, given)
        self._state = DemandBook(self.options)
        self._is_woken = False

    def _assemble(self) -> None:
        transport, book, handle_error = (
            self._transport,
            self._state,
            self._membership.handle_error,
        )
        self._reporter = DroppingReporter(
            transport=transport, state=book, handle_error=handle_error
        )
        self._puller: DemandPuller = DemandPuller(
            transport=transport, book=book, handle_error=handle_error, topics=self.topics
        )
        self._renewer = Renewer(transport=transport, book=book, handle_error=handle_error)
        book.on_silent_broker = self._puller.interrupt
        book.on_failed = self._reporter.add

    def choose(self, topics: Sequence[str]) -> None:
        """Lease from these topics only, the first preferred; what waits of others is given
        back.
        """
        with self._state.changed:
            if self._puller.choose(topics):
                self._give_back(lambda topic: topic not in topics)
                self._puller.interrupt()

    def give_back(self, topics: Sequence[str]) -> None:
        """Give back what waits of these topics."""
        with self._state.changed:
            self._give_back(lambda topic: topic in topics)

    def take(self, most: int, timeout_s: float) -> list[ShareMessage]:
        """Return up to `most` messages as soon as there are any; [] after `timeout_s`, or
        at wake().

        Raises what ended the membership.
        """
        return self._take_until(most, lambda: self._is_woken, timeout_s)

    def get(self) -> ShareMessage | None:
        """Return a message, or None if the brokers say that there is none now. Raises
        Unavailable.
        """
        book = self._state
        with book.changed:
            book.hasty = True
            seen = book.empty_answers
            self._puller.interrupt()
        try:
            taken = self._take_until(1, lambda: book.empty_answers > seen, GET_WITHIN_S)
        finally:
            book.hasty = False
        if not taken and book.empty_answers == seen:
            raise Unavailable(f"no broker answered within {GET_WITHIN_S:.0f} s")
        return taken[0] if taken else None

    def want(self, most: int, on_arrival: Callable[[], object]) -> None:
        """Lease up to `most` messages in the background; call that, in any thread, when
        some have come.
        """
        self._start_or_resume()
        book = self._state
        with book.changed:
            book.on_arrival = on_arrival
            if book.demand != most:
                book.demand = most
                book.changed.room.notify_all()
                book.changed.reports.notify_all()

    def has_come(self) -> bool:
        """Return True if come() would return messages, or raise."""
        book = self._state
        with book.changed:
            comes = (
                book.demand > 0
                and book.has_lease()
                and any(run.can_hand_out() for run in book.runs.values())
            )
            return comes or book.fatal is not None

    def come(self) -> list[ShareMessage]:
        """Return what want() has brought. Raises what ended the membership."""
        book = self._state
        with book.changed:
            self._raise_if_ended()
            taken = book.hand_out(book.demand) if book.demand else []
            # Under the same lock: the puller must not see room for what was taken.
            book.demand -= len(taken)
            return [cast(ShareMessage, message) for _, message in taken]

    def wake(self) -> None:
        """Let take() return at once: there is something to do."""
        with self._state.changed:
            self._is_woken = True
            self._state.changed.messages.notify_all()

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Report everything now; return True if brokers know all of it in time."""
        return self._renewer.flush(within_s)

    def _give_back(self, which: Callable[[str], bool]) -> None:
        for run in [*self._state.runs.values()]:
            if which(run.subscription) and (waiting := run.waiting_offsets()):
                self._state.give_back(run, waiting)

    def _take_until(
        self, most: int, is_over: Callable[[], bool], within_s: float
    ) -> list[ShareMessage]:
        self._start_or_resume()
        book, give_up_at = self._state, time.monotonic() + within_s
        with book.changed:
            book.demand = most
            book.changed.room.notify_all()
            try:
                while True:
                    self._raise_if_ended()
                    taken = book.hand_out(most)
                    left_s = give_up_at - time.monotonic()
                    if taken or left_s <= 0 or is_over():
                        return [cast(ShareMessage, message) for _, message in taken]
                    book.changed.messages.wait(left_s)
            finally:
                # Under the same lock: the puller must not see what was taken while more
                # seems wanted.
                book.demand, self._is_woken = 0, False
                book.away_since = time.monotonic()
