"""The runs that a member of a share group holds, and what has become of their messages; see
LeaseBook.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from catmq_client.errors import HandlerFailed, OptionError
from catmq_client.message import Message, Source, parse_messages
from catmq_client.options import ShareConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.fetcher import Pace
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.sharing.messages import ShareMessage
from catmq_client.sharing.runs import RENEWED_AFTER, HeldRun, RunKey, RunReport, run_key
from catmq_client.telemetry.process_report import AtWork

log = logging.getLogger("catmq.consumer")

# What brokers take in one request.
MOST_REPORTS = 1_000
# A finished run waits so long for a pull to tell of it, s.
LINGER_S = 0.01
# Messages held ahead of the application, at most; with many threads, twice as many as
# these.
PREFETCH = 16
# Messages are held ahead that the application will begin with in this time, s.
AHEAD_S = 1.0
# part of max_processing_ms after which it is looked whether it has passed
LOOKED_AFTER = 1 / 4
# The application has begun nothing for so long although it could, s.
STALLED_S = 1.0
# Longest pause before a report of a run is repeated whose node does not answer, s.
PAUSE_S = 1.0
MOST_DELAY_S = 366 * 86_400  # that a delivery may be put off by


class LeaseBook(GroupState):
    """State of a member of a share group: it owns no queues, but holds runs of any.

    One lock, `changed`, guards it. The puller brings runs, the application's threads finish
    messages, the renewer renews leases and reports. A run stays in the book until the
    broker knows all about it.
    """

    # Called under the lock with a message that failed, or is to be delivered later.
    on_failed: Callable[..., object] = staticmethod(lambda *_, **__: None)

    def __init__(self, options: ShareConsumerOptions) -> None:
        super().__init__(options.of_member())
        self.share_options = options
        self.runs: dict[RunKey, HeldRun] = {}
        # Rises when a membership ends. Brokers end its leases then, so an answer to a
        # request of an
        # earlier one extends none, however late it comes.
        self.term = 0
        # The most recent lease, s.
        self.lease_s = 30.0
        # run(): how many messages its threads may have at work.
        self.most_at_work = 1
        # How many messages the application waits for, if it does.
        self.demand = 0
        # When the application last took a message or was done with one, monotonic.
        self.progress_at = time.monotonic()
        # All news are to be reported at once.
        self.hurried = False
        # The consumer closes: what still comes is given back.
        self.parting = False
        # Pulls under way: what is given back meanwhile might come back to us.
        self.pulls = 0
        self._pace = Pace()
        self._serials = itertools.count(1)

    def lose_all(self) -> None:
        """The membership is gone, and brokers end the leases of its runs: each is to be
        renewed first.
        """
        super().lose_all()
        self.term += 1
        for run in self.runs.values():
            run.lease_until = min(run.lease_until, lease_clock())
        self.changed.notify_all()

    def silent_since(self) -> None:
        """Return None: messages that the application does not come back from are leased on,
        or lapse.
        """
        return

    def _in_hand(self) -> Iterable[AtWork]:
        runs = self.runs.values()
        return [
            AtWork(since, run.queue, one)
            for run in runs
            for one, since in run.since.items()
        ]

    def all_halted(self) -> bool:
        return self.failure is not None

    # Runs that come and go.

    def take_over(self, items: Iterable[Mapping[str, Any]], *, sent_at: float) -> bool:
        """Hold the runs of an answer to a request sent at `sent_at`; return True if there
        is anything new.
        """
        brought = False
        for item in items:
            if run_key(item) in self.runs or self._is_again(item, sent_at):
                continue
            run = HeldRun(item, serial=next(self._serials), sent_at=sent_at)
            source = Source(run.subscription, run.queue, run.epoch)
            run.fill(
                parse_messages(item, source, partial(ShareMessage, run=run, book=self))
            )
            self.runs[run.key] = run
            self.lease_s = run.lease_s
            self._rotation.append(run)
            self._count(run, 1)
            brought = brought or bool(run.open)
        self.changed.messages.notify_all()
        self.changed.reports.notify_all()
        return brought

    def _is_again(self, item: Mapping[str, Any], sent_at: float) -> bool:
        """Return True if a run is still held that this member got again: its messages are
        not new.
        """
        run = next((run for run in self.runs.values() if run.is_same(item)), None)
        if run is not None:
            del self.runs[run.key]
            run.granted_again(item, sent_at=sent_at)
            self.runs[run.key] = run
            self._told_again(run)
        return run is not None

    def lose(self, owned: OwnedQueue, *, tell: bool = True) -> None:
        """Hold a run no longer, because somebody else has it; what is at work on it may be
        done twice.
        """
        if not isinstance(owned, HeldRun) or owned.lost:
            return
        if owned.finished:
            self.unreported[owned.queue] = owned
        self._drop(owned)
        owned.lost = True
        self.on_start()
        self.changed.notify_all()

    def _drop(self, run: HeldRun) -> None:
        if self.runs.pop(run.key, None) is run:
            self._rotation.remove(run)
        self.evict(run)

    def halt(self, owned: OwnedQueue, failure: HandlerFailed) -> None:
        super().halt(owned, failure)
        log.error("the consumer stops: other members get what it holds")

    def seek(self, owned: OwnedQueue, offset: int) -> None:
        """Give back the messages of a run that failed and can be stored nowhere."""
        if isinstance(owned, HeldRun):
            failed, owned.reporting = [*owned.reporting], set()
            owned.version += 1
            self.give_back(owned, failed)

    # What becomes of messages.

    def hand_out(self, limit: int) -> list[tuple[OwnedQueue, Message]]:
        taken = super().hand_out(limit)
        if taken:
            self.progress_at = now = time.monotonic()
            for owned, message in taken if not self.in_run else ():
                if isinstance(owned, HeldRun):
                    owned.hand_over(message.offset, now)
            self._tell_room()
        if len(taken) < limit and self._begin_some():
            self.changed.reports.notify_all()
        return taken

    def undo_hand_out(self, taken: Iterable[tuple[OwnedQueue, Message]]) -> None:
        with self.changed:
            for run in [*self.runs.values()]:
                offsets = {
                    message.offset for owned, message in taken if owned is run
                } | run.strayed()
                # then the application was done with all others
                if self.share_options.auto_accept:
                    offsets |= run.since.keys() - run.reporting
                for offset in offsets:
                    # it never got it: the lease is not to count
                    run.since.pop(offset, None)
                self.give_back(run, offsets)
            self.recount(self.runs.values())
            self.changed.notify_all()

    def _tell_room(self) -> None:
        if self.room():  # to wake a thread costs more than to count
            self.changed.room.notify_all()

    def finish(self, owned: OwnedQueue, offset: int, version: int) -> None:
        owned.finish(offset, version)
        self.finished += 1
        self.progressed(owned)

    def finish_taken(self, owned: OwnedQueue) -> None:
        """The application came back for more: what it had of a run is done."""
        if isinstance(owned, HeldRun):
            self.finished += len(owned.since)
            owned.finish_all()
            self.progressed(owned)

    def progressed(self, owned: OwnedQueue) -> None:
        """The application is done with messages of a run: there may be room, and news."""
        self.progress_at = time.monotonic()
        self._notify_progress(owned)

    def _notify_progress(self, owned: OwnedQueue) -> None:
        self._tell_room()
        is_urgent = isinstance(owned, HeldRun) and owned.has_urgent_news()
        if is_urgent or any(run.begins_later() for run in self.runs.values()):
            self.changed.reports.notify_all()

    def give_back(self, run: HeldRun, offsets: Iterable[int]) -> None:
        """Let messages be delivered again, by whomever."""
        self._count(run, -1)
        for offset in offsets:
            run.give_back(offset)
        self._count(run, 1)
        self.on_start()
        self._notify_progress(run)

    def part(self) -> None:
        """Give back what the application never got; it counts as not delivered."""
        with self.changed:
            self.parting = True
            for run in [*self.runs.values()]:
                self.give_back(run, run.waiting_offsets())

    def accept(self, message: ShareMessage) -> bool:
        """See ShareMessage."""
        with self.changed:
            ours = message.is_held
            if ours:
                self.finish(message.run, message.offset, message.run.version)
            return ours

    def deliver_again(self, message: ShareMessage, delay_s: float | None) -> bool:
        """See ShareMessage."""
        if delay_s is not None and not 0 <= delay_s <= MOST_DELAY_S:
            raise OptionError(
                f"delay_s={delay_s!r}: write 0 to {MOST_DELAY_S} seconds, or None for at once"
            )
        with self.changed:
            if not message.is_held:
                return False
            if delay_s is None:
                self.give_back(message.run, [message.offset])
                self.progressed(message.run)
            else:
                self.on_failed(
                    message.run, message, "released", delay_ms=round(delay_s * 1000)
                )
            return True

    def reject(self, message: ShareMessage, error: BaseException | str) -> bool:
        """See ShareMessage."""
        with self.changed:
            ours = message.is_held
            if ours:
                self.on_failed(message.run, message, error or "rejected", final=True)
            return ours

    def renew(self, message: ShareMessage, seconds: float) -> bool:
        """See ShareMessage."""
        if not seconds > 0:
            raise OptionError(
                f"seconds={seconds!r}: write how long to keep the message, above 0"
            )
        with self.changed:
            ours = message.is_held
            if ours:
                message.run.wanted_until[message.offset] = time.monotonic() + seconds
                message.run.wants_renewal = True
                self.changed.reports.notify_all()
            return ours

    # Room for more.

    def in_flight(self) -> int:
        """Return how many messages are held and not done."""
        return sum(len(run.open) for run in self.runs.values())

    def room(self) -> int:
        """Return how many more messages to ask for now.

        As many as the application would begin with at once, and ahead of it no more than it
        will begin with in AHEAD_S: what waits behind a slow message could be at work
        elsewhere. None beside a message that may be the one that kills its workers: what
        they hold dies with them, and counts as delivered.
        """
        options = self.share_options
        if any(run.is_suspect() for run in self.runs.values()):
            return 0
        most = max(PREFETCH, 2 * self.most_at_work) if self.in_run else PREFETCH
        soon = min(most, self._pace.per_s(self.finished) * AHEAD_S)
        ahead = int(soon) if options.prefetch is None else options.prefetch
        waiting = sum(run.waiting for run in self.runs.values())
        room = min(
            self._idle_capacity() + ahead - waiting,
            options.max_in_flight - self.in_flight(),
        )
        return room if room >= max(1, ahead // 2) or (room > 0 and not waiting) else 0

    def _idle_capacity(self) -> int:
        """Return how many messages the application would begin with at once."""
        if self.in_run:
            return max(
                0, self.most_at_work - sum(run.running for run in self.runs.values())
            )
        return max(self.demand, 1) if self.away_since is None else 0

    def may_pull(self) -> bool:
        """Return False while a lease has run out and is about to be renewed: a pull might
        bring it anew.
        """
        return not any(
            run.open and run.has_lapsed() and not run.failures for run in self.runs.values()
        )

    def stands_still(self, now: float) -> bool:
        """Return True if the application has been busy with what it has for a lease: others
        may work.
        """
        if now - self.progress_at < self.lease_s:
            return False
        if self.in_run:
            return sum(run.running for run in self.runs.values()) >= (
                self.limits.threads or self.threads
            )
        return self.away_since is not None and now - self.away_since >= self.lease_s

    # Reports.

    def over(self) -> list[RunReport]:
        """Return reports of the runs of which all is known; they are under way from now on."""
        runs = [run for run in self.runs.values() if run.is_over() and not run.sending]
        return [self._send(run, renews=False) for run in runs[:MOST_REPORTS]]

    def due(self) -> list[RunReport]:
        """Return reports and renewals that are due; they are under way from now on."""
        now, lease_now = time.monotonic(), lease_clock()
        self._let_go(now)
        self._begin_some()
        due = [
            run for run in self.runs.values() if self._due_in_s(run, now, lease_now) <= 0
        ]
        for run in due:
            self._tell_late(run, lease_now)
        return [
            self._send(run, renews=run.renewal_in_s(lease_now) <= 0)
            for run in due[:MOST_REPORTS]
        ]

    def _begin_some(self) -> bool:
        """Choose the runs that brokers are to be told of: the application would begin with
        them now.

        Return True if there are any.
        """
        later = [
            run for run in self.runs.values() if run.begins_later() and not run.has_lapsed()
        ]
        if not later:
            return False
        idle = self._idle_capacity()
        ready = [run for run in self.runs.values() if run.may_begin or run.wants_begin]
        free = idle - sum(run.waiting for run in ready)
        if idle > 0 and time.monotonic() - self.progress_at >= STALLED_S:
            free = max(free, 1)  # what is ready does not begin: its subscription rests
        for run in later:
            if free > 0:
                run.wants_begin = True
                free -= run.waiting
        return any(run.wants_begin for run in later)

    def due_in_s(self) -> float:
        """Return the seconds until something may be due."""
        now, lease_now = time.monotonic(), lease_clock()
        waits = [self._due_in_s(run, now, lease_now) for run in self.runs.values()]
        if self.share_options.max_processing_ms is not None:
            waits.append(self.share_options.max_processing_ms / 1000 * LOOKED_AFTER)
        return max(0.0, min([self.lease_s * RENEWED_AFTER, *waits]))

    def unsent(self, reports: Iterable[RunReport]) -> None:
        """Reports did not arrive, or nobody knows: they are repeated."""
        for report in reports:
            report.run.sending = False
        self.changed.reports.notify_all()

    def answered(
        self,
        reports: Iterable[RunReport],
        states: Iterable[Mapping[str, Any]],
        *,
        sent_at: float,
    ) -> None:
        """Draw the consequences of the answer to reports that were sent at `sent_at`, lease
        clock.
        """
        known = {run_key(state): state for state in states}
        for report in reports:
            run = report.run
            if report.grant == run.grant and not run.lost:
                run.sending = False
                self._answered(report, known.get(run.key, {}), sent_at)
        self.changed.notify_all()

    def is_settled(self) -> bool:
        """Return True if brokers know all there is to know."""
        return all(run.news_since is None for run in self.runs.values())

    def _send(self, run: HeldRun, *, renews: bool) -> RunReport:
        run.sending = True
        if renews and run.open and not run.has_begun:
            # It has waited here for a third of its lease. If this process gets no further,
            # nobody
            # had these messages.
            run.hold_back()
        return RunReport.of(run, renews=renews, term=self.term)

    def _due_in_s(self, run: HeldRun, now: float, lease_now: float) -> float:
        if run.sending:
            return math.inf
        waits = [run.renewal_in_s(lease_now)]
        if run.wants_begin and not run.may_begin and run.open:
            waits.append(0.0)
        if run.news_since is not None:
            # What was lost before may be lost again: then others of its run are not to be
            # repeated.
            at_once = self.hurried or run.leaving or run.deliveries > 1
            soon = run.has_urgent_news()
            pause_s = (
                LINGER_S if soon else self.share_options.auto_commit_interval_ms / 1000
            )
            waits.append(run.news_since + (0.0 if at_once else pause_s) - now)
        return max(min(waits), run.not_before - now)

    def _answered(
        self, report: RunReport, state: Mapping[str, Any], sent_at: float
    ) -> None:
        run, told = report.run, state.get("state")
        if told == "ok":
            run.failures = 0
            was_held_back = not run.may_begin
            run.sent(report)
            if was_held_back and run.may_begin:
                self._after_begin_recorded(run)
            if report.renews and report.term == self.term:
                self._renewed(
                    run, sent_at + state.get("lease_ms", run.lease_s * 1000) / 1000
                )
            if run.is_over() and run.news_since is None:
                self._drop(run)
        elif told == "gone" and run.is_over():
            # the answer to an earlier report was lost, or offsets were reset
            self._drop(run)
        elif told in ("lost", "gone", "invalid"):
            what = {
                "lost": "somebody else has it now",
                "gone": "it is no longer leased",
            }.get(told)
            what = what or f"its report was refused: {state.get('detail')}"
            log.warning("%s: %s; messages that are not done are delivered again", run, what)
            run.finished = set() if told == "gone" else run.finished
            self.lose(run)
        else:
            run.rest(most_s=PAUSE_S)

    def _after_begin_recorded(self, run: HeldRun) -> None:
        """Brokers know that messages of a run begin: the application may have them."""
        self.on_start()

    def _renewed(self, run: HeldRun, until: float) -> None:
        run.lease_until = max(run.lease_until, until)
        run.wants_renewal = False
        self._told_again(run)

    def _told_again(self, run: HeldRun) -> None:
        if run.told_late:
            run.told_late = False
            log.info("%s: leased again", run)
            self.on_start()

    def _tell_late(self, run: HeldRun, lease_now: float) -> None:
        if run.open and lease_now >= run.lease_until and not run.told_late:
            run.told_late = True
            what = (
                "%s: the lease has run out; nothing more of it begins until a broker "
                "has renewed it"
            )
            log.warning(what, run)

    def _let_go(self, now: float) -> None:
        """Give back what has been at work for too long, and what waits behind something
        that is.
        """
        if self.pulls and not self.in_run:
            return  # it would come back to an application that is away
        stands_still = self.stands_still(now) and not self.pulls
        limit_ms = self.share_options.max_processing_ms
        for run in [*self.runs.values()]:
            late = [
                offset
                for offset in run.since
                if run.ends_at(offset, limit_ms) <= now and run.is_ours(offset)
            ]
            if late:
                what = (
                    "%s: offsets %s at work for more than max_processing_ms; they are "
                    "delivered again"
                )
                log.warning(what, run, late)
            waiting = run.waiting_offsets() if stands_still else ()
            if late or waiting:
                self.give_back(run, [*late, *waiting])

    def _count(self, run: HeldRun, sign: int) -> None:
        self.buffered += sign * len(run.buffer)
        self.buffered_bytes += sign * sum([len(message.body) for message in run.buffer])
