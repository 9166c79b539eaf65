"""The messages that a member of a share group has leased, and their results: see LeaseBook."""

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
from catmq_client.sharing.runs import RENEW_FRACTION, HeldRun, RunKey, RunReport, run_key
from catmq_client.telemetry.process_report import AtWork

log: logging.Logger = logging.getLogger("catmq.consumer")

# Brokers take at most this many reports in a request.
MAX_REPORTS = 1_000
# A finished run waits this long for a pull that carries its report, s.
LINGER_S = 0.01
# Maximum number of messages leased ahead of the application. With many threads it is twice
# their number.
PREFETCH = 16
# Messages are leased ahead if the application will begin with them within this time, s.
AHEAD_S = 1.0
# Fraction of max_processing_ms after which the messages at work are checked.
CHECK_FRACTION = 1 / 4
# If the application has room, but has begun and finished no message for this time, s, the
# messages that may begin are held up, for example because their subscription is paused. Then
# another run may begin instead of them.
HELD_UP_S = 1.0
# Longest pause before the report of a run is repeated whose node does not answer, s.
MAX_PAUSE_S = 1.0
MAX_DELAY_S = 366 * 86_400  # maximum delay of a delivery


class LeaseBook(GroupState):
    """State of a member of a share group: it owns no queues, but leases messages of any of
    them.

    Terms:

        run         a stretch of offsets of a queue that is leased as a whole (HeldRun); the
                    consumer's method run(), which calls a handler, is something else
        waiting     a message that is leased and that the application has not begun with
        at work     a message that the application has, and has not finished
        finished    a message whose handling has ended: it is reported as done
        given back  a message that any member may get again, at once
        report      the results of a run, sent to brokers; the run stays here until a broker
                    has recorded the result of each message
        grant       the id of a lease of a run; brokers refuse reports of an earlier grant
        lapsed      a lease that has passed its end; a broker may still renew it
        lost        a run that has left the book, because a broker has refused its report or
                    leases it to this member no longer
        suspect     a message with which at least two workers were lost: it may have killed
                    them, so it is leased in a run of its own

    If a lease ends and this member leases the same run again, the run here gets the new grant.

    Brokers count the deliveries of a run, that is its leases. From the third delivery on a
    message is suspect; after max_deliveries it becomes a dead letter. A lease must not count
    if the run only waited in a member that died. So a run that is delivered again passes
    through three states, and its messages may start only in the last:

        uncounted        the lease does not count yet
        begin_requested  the application has room for the run: the next report says so
        may_begin        a broker has recorded the begin, and the lease counts

    A first lease counts at once, to save that request. It becomes uncounted when it is
    renewed before any message of the run is begun.

    GroupState is written for owned queues. HeldRun is a subclass of OwnedQueue, so that the
    methods of GroupState work on runs; in those that are overridden here, `owned` is a run.

    The lock `changed` guards the book. The puller adds runs, the application's threads
    finish messages, and the renewer renews leases and sends reports. Each waits for a
    condition of that lock: `room`, `messages` and `reports`.
    """

    # Declared again, because pyright reads no type from an augmented assignment.
    finished: int
    buffered: int
    buffered_bytes: int
    # Stores a failed message for a retry, or a message that is to be delivered later.
    # Called under the lock with the run, the message and the error.
    on_failed: Callable[..., object] = staticmethod(lambda *_, **__: None)

    def __init__(self, options: ShareConsumerOptions) -> None:
        super().__init__(options.member_options())
        self.share_options = options
        self.runs: dict[RunKey, HeldRun] = {}
        # Rises when a membership ends. Brokers end its leases then, so an answer to a
        # request of an earlier membership extends no lease, however late it arrives.
        self.term: int = 0
        # The most recent lease, s.
        self.lease_s: float = 30.0
        # Consumer's run(): how many messages its threads may have at work.
        self.max_at_work = 1
        # How many messages the application waits for; 0 if it does not wait.
        self.demand = 0
        # When the application last took or finished a message, monotonic.
        self.progress_at: float = time.monotonic()
        # All results are to be reported at once.
        self.flushing = False
        # The consumer is closing: runs that still arrive are given back.
        self.closing: bool = False
        # Number of pulls under way. Messages that are given back meanwhile might be leased to
        # this member again.
        self.pulls = 0
        self._pace = Pace()
        self._serials = itertools.count(1)

    def lose_all(self) -> None:
        """Note the end of the membership.

        Brokers end its leases, so each must be renewed first.
        """
        super().lose_all()
        self.term += 1
        for run in self.runs.values():
            run.lease_until = min(run.lease_until, lease_clock())
        self.changed.notify_all()

    def silent_since(self) -> None:
        """Return None: a share group has no max_poll_interval_ms.

        The leases of messages that the application never finishes are renewed, or they end.
        """
        return

    def _work_in_hand(self) -> Iterable[AtWork]:
        """Return each message that the application has begun with."""
        runs = self.runs.values()
        return [
            AtWork(begun_at, run.queue, offset)
            for run in runs
            for offset, begun_at in run.begun_at.items()
        ]

    def all_halted(self) -> bool:
        return self.failure is not None

    # Runs that are added and removed.

    def take_over(self, entries: Iterable[Mapping[str, Any]], *, sent_at: float) -> bool:
        """Add the runs of an answer to a request that was sent at `sent_at`, lease clock.

        Return True if the application has new messages.
        """
        has_new_messages = False
        for entry in entries:
            if run_key(entry) in self.runs:
                continue
            held = next((run for run in self.runs.values() if run.is_same_run(entry)), None)
            if held is not None:
                # The lease had ended, and this member got the run again, under a new grant.
                # Its messages are here already. The grant is a part of the key.
                del self.runs[held.key]
                held.regrant(entry, sent_at=sent_at)
                self.runs[held.key] = held
                self._log_renewal(held)
                continue
            run = HeldRun(entry, serial=next(self._serials), sent_at=sent_at)
            # An epoch distinguishes the ownerships of a queue. A run has none, so its `epoch` is
            # its serial number, which distinguishes the runs of a queue.
            source = Source(run.subscription, run.queue, run.epoch)
            run.fill(
                parse_messages(entry, source, partial(ShareMessage, run=run, book=self))
            )
            self.runs[run.key] = run
            self.lease_s = run.lease_s
            # GroupState hands out the messages of its rotation in turns, here run by run.
            self._rotation.append(run)
            self._adjust_buffered(run, 1)
            has_new_messages = has_new_messages or bool(run.open)
        self.changed.messages.notify_all()
        self.changed.reports.notify_all()
        return has_new_messages

    def lose(self, owned: OwnedQueue, *, notify: bool = True) -> None:
        """Remove a run that a broker no longer leases to this member, or whose report it
        refused.

        Messages of it that are at work here may be handled twice.
        """
        if not isinstance(owned, HeldRun) or owned.lost:
            return
        # The results are lost, too: the next commit() raises CommitFailed.
        if owned.finished:
            self.unannounced_losses[owned.queue] = owned
        self._remove(owned)
        owned.lost = True
        # A handler may go on after it has accepted its message.
        self.on_withdrawn(owned, frozenset(owned.open))
        self.on_runnable()
        self.changed.notify_all()

    def _remove(self, run: HeldRun) -> None:
        """Remove a run and its buffered messages."""
        if self.runs.pop(run.key, None) is run:
            self._rotation.remove(run)
        self.evict(run)

    def halt(self, owned: OwnedQueue, failure: HandlerFailed) -> None:
        super().halt(owned, failure)
        log.error("the consumer stops; its unfinished messages go to other members")

    def redeliver_failed(self, owned: OwnedQueue) -> None:
        """Give back the messages of a run that failed and cannot be stored for a retry.

        Any member may then lease them again.
        """
        if isinstance(owned, HeldRun):
            failed_offsets, owned.unstored_failures = [*owned.unstored_failures], set()
            # The next version makes failure_reports.py drop the reports of these messages.
            owned.version += 1
            self.give_back(owned, failed_offsets)

    # Results of messages.

    def hand_out(self, limit: int) -> list[tuple[OwnedQueue, Message]]:
        taken = super().hand_out(limit)
        if taken:
            self.progress_at = now = time.monotonic()
            for owned, message in taken if not self.has_worker_threads else ():
                if isinstance(owned, HeldRun):
                    owned.begin_processing(message.offset, now)
            self._wake_puller()
        if len(taken) < limit and self._request_begin_records():
            self.changed.reports.notify_all()
        return taken

    def undo_hand_out(self, taken: Iterable[tuple[OwnedQueue, Message]]) -> None:
        with self.changed:
            for run in [*self.runs.values()]:
                offsets = {
                    message.offset for owned, message in taken if owned is run
                } | run.undelivered_offsets()
                # With auto_accept each call accepts the messages of the call before. So all
                # messages at work belong to the interrupted call. Failed messages are not
                # given back: they are about to be stored for a retry, and would be delivered
                # twice.
                if self.share_options.auto_accept:
                    offsets |= run.begun_at.keys() - run.unstored_failures
                for offset in offsets:
                    # Not begun any more: the application never got the message, so the lease
                    # must not count as a delivery.
                    run.begun_at.pop(offset, None)
                self.give_back(run, offsets)
            self.recount(self.runs.values())
            self.changed.notify_all()

    def _wake_puller(self) -> None:
        """Wake the puller if there is room for more messages."""
        if self.room():  # waking a thread costs more than counting
            self.changed.room.notify_all()

    def finish(self, owned: OwnedQueue, offset: int, version: int) -> None:
        owned.finish(offset, version)
        self.finished += 1
        self.note_progress(owned)

    def accept_taken(self, owned: OwnedQueue) -> None:
        """Accept the messages of a run that the application has taken, because it asks for
        more.
        """
        if isinstance(owned, HeldRun):
            self.finished += len(owned.begun_at)
            owned.finish_all()
            self.note_progress(owned)

    def note_progress(self, owned: OwnedQueue) -> None:
        """Note that messages of a run have ended, so the application is not stalled.

        There may be room for other messages, and results to report.
        """
        self.progress_at = time.monotonic()
        self._notify_progress(owned)

    def _notify_progress(self, owned: OwnedQueue) -> None:
        """Wake the puller if there is room, and the renewer if a report is urgent."""
        self._wake_puller()
        is_urgent = isinstance(owned, HeldRun) and owned.is_report_urgent()
        if is_urgent or any(run.awaits_begin_record() for run in self.runs.values()):
            self.changed.reports.notify_all()

    def give_back(self, run: HeldRun, offsets: Iterable[int]) -> None:
        """Give messages of a run back: any member may get them at once."""
        # run.give_back() also removes the message from the buffer, which changes the counts.
        self._adjust_buffered(run, -1)
        for offset in offsets:
            run.give_back(offset)
        self._adjust_buffered(run, 1)
        self.on_runnable()
        self._notify_progress(run)

    def return_unfinished(self, owned: OwnedQueue, offset: int) -> None:
        if isinstance(owned, HeldRun):
            self.give_back(owned, [offset])
            self.note_progress(owned)

    def give_back_waiting(self) -> None:
        """Give back the messages that wait. Their lease does not count as a delivery."""
        with self.changed:
            self.closing = True
            for run in [*self.runs.values()]:
                self.give_back(run, run.waiting_offsets())

    def accept(self, message: ShareMessage) -> bool:
        """Carry out ShareMessage.accept()."""
        with self.changed:
            is_held = message.is_held
            if is_held:
                self.finish(message.run, message.offset, message.run.version)
            return is_held

    def redeliver(self, message: ShareMessage, delay_s: float | None) -> bool:
        """Carry out ShareMessage.release(). GroupState.release() releases a queue instead."""
        if delay_s is not None and not 0 <= delay_s <= MAX_DELAY_S:
            raise OptionError(
                f"delay_s={delay_s!r}: write 0 to {MAX_DELAY_S} seconds, or None for at once"
            )
        with self.changed:
            if not message.is_held:
                return False
            if delay_s is None:
                self.give_back(message.run, [message.offset])
                self.note_progress(message.run)
            else:
                self.on_failed(
                    message.run, message, "released", delay_ms=round(delay_s * 1000)
                )
            return True

    def reject(self, message: ShareMessage, error: BaseException | str) -> bool:
        """Carry out ShareMessage.reject()."""
        with self.changed:
            is_held = message.is_held
            if is_held:
                self.on_failed(message.run, message, error or "rejected", final=True)
            return is_held

    def renew(self, message: ShareMessage, seconds: float) -> bool:
        """Carry out ShareMessage.renew()."""
        if not seconds > 0:
            raise OptionError(
                f"seconds={seconds!r}: write how long to keep the message, above 0"
            )
        with self.changed:
            is_held = message.is_held
            if is_held:
                message.run.renewed_until[message.offset] = time.monotonic() + seconds
                message.run.renewal_requested = True
                self.changed.reports.notify_all()
            return is_held

    # Room for more messages.

    def in_flight(self) -> int:
        """Return how many messages are leased and unfinished."""
        return sum(len(run.open) for run in self.runs.values())

    def room(self) -> int:
        """Return how many messages to pull now.

        That is the number of messages that the application would begin with at once, plus
        the number that it is expected to begin with in AHEAD_S. More would wait here for a
        slow message, although other members could handle them.

        A pull of few messages costs as much as a pull of many. So while messages wait here,
        the result is 0 until there is room for half of the messages leased ahead. If none
        waits, the application may be idle, and any room is used.
        """
        # A suspect run may kill this worker. Other messages that it leases meanwhile would be
        # lost with it, and count as delivered.
        options = self.share_options
        if any(run.is_suspect() for run in self.runs.values()):
            return 0
        max_ahead = (
            max(PREFETCH, 2 * self.max_at_work) if self.has_worker_threads else PREFETCH
        )
        expected = min(max_ahead, self._pace.per_s(self.finished) * AHEAD_S)
        ahead = int(expected) if options.prefetch is None else options.prefetch
        waiting = sum(run.waiting for run in self.runs.values())
        room = min(
            self._idle_capacity() + ahead - waiting,
            options.max_in_flight - self.in_flight(),
        )
        is_worth_a_pull = room >= max(1, ahead // 2) or (room > 0 and not waiting)
        return room if is_worth_a_pull else 0

    def _idle_capacity(self) -> int:
        """Return how many messages the application would begin with at once."""
        if self.has_worker_threads:
            return max(0, self.max_at_work - sum(run.at_work for run in self.runs.values()))
        return max(self.demand, 1) if self.away_since is None else 0

    def may_pull(self) -> bool:
        """Return False if the lease of a held run has ended and is about to be renewed.

        A pull now might lease the messages of that run to this member a second time.
        """
        # After a failed report it may take long, and other messages need not wait for that.
        return not any(
            run.open and run.has_lapsed() and not run.failures for run in self.runs.values()
        )

    def is_stalled(self, now: float) -> bool:
        """Return True if the application has begun and finished nothing for a whole lease,
        although it is busy.

        Then the messages that wait here are better given to other members.
        """
        if now - self.progress_at < self.lease_s:
            return False
        if self.has_worker_threads:
            return sum(run.at_work for run in self.runs.values()) >= (
                self.limits.threads or self.threads
            )
        return self.away_since is not None and now - self.away_since >= self.lease_s

    # Reports to brokers.

    def finished_run_reports(self) -> list[RunReport]:
        """Return reports of the finished runs, and mark them as being sent."""
        runs = [run for run in self.runs.values() if run.is_finished() and not run.sending]
        return [self._start_report(run, renews=False) for run in runs[:MAX_REPORTS]]

    def due_reports(self) -> list[RunReport]:
        """Return the reports and renewals that are due, and mark them as being sent."""
        now, lease_now = time.monotonic(), lease_clock()
        self._give_back_late(now)
        self._request_begin_records()
        due_runs = [
            run for run in self.runs.values() if self._due_in_s(run, now, lease_now) <= 0
        ]
        for run in due_runs:
            if run.open and lease_now >= run.lease_until and not run.expiry_logged:
                run.expiry_logged = True
                log.warning(
                    "%s: the lease has run out; nothing more of it begins until a broker "
                    "has renewed it",
                    run,
                )
        return [
            self._start_report(run, renews=run.renewal_in_s(lease_now) <= 0)
            for run in due_runs[:MAX_REPORTS]
        ]

    def _request_begin_records(self) -> bool:
        """Set `begin_requested` in the uncounted runs that the application has room for.

        The next report of such a run has the request (see the class). Return True if it was
        set in any run.
        """
        unrecorded_runs = [
            run
            for run in self.runs.values()
            if run.awaits_begin_record() and not run.has_lapsed()
        ]
        if not unrecorded_runs:
            return False
        capacity = self._idle_capacity()
        recorded_runs = [
            run for run in self.runs.values() if run.may_begin or run.begin_requested
        ]
        # Messages of runs that may begin, or soon may, come first: only the room that they
        # leave is for other runs.
        free = capacity - sum(run.waiting for run in recorded_runs)
        if capacity > 0 and time.monotonic() - self.progress_at >= HELD_UP_S:
            # Those messages do not begin although the application has room, for example
            # because their subscription is paused. They must not hold up every other run, so
            # another run may begin.
            free = max(free, 1)
        for run in unrecorded_runs:
            if free > 0:
                run.begin_requested = True
                free -= run.waiting
        return any(run.begin_requested for run in unrecorded_runs)

    def due_in_s(self) -> float:
        """Return the seconds until a report or a renewal may be due."""
        now, lease_now = time.monotonic(), lease_clock()
        waits = [self._due_in_s(run, now, lease_now) for run in self.runs.values()]
        if self.share_options.max_processing_ms is not None:
            waits.append(self.share_options.max_processing_ms / 1000 * CHECK_FRACTION)
        return max(0.0, min([self.lease_s * RENEW_FRACTION, *waits]))

    def mark_unsent(self, reports: Iterable[RunReport]) -> None:
        """Mark reports whose request failed, so that they are repeated."""
        for report in reports:
            report.run.sending = False
        self.changed.reports.notify_all()

    def apply_answers(
        self,
        reports: Iterable[RunReport],
        states: Iterable[Mapping[str, Any]],
        *,
        sent_at: float,
    ) -> None:
        """Apply the answer to reports that were sent at `sent_at`, lease clock."""
        states_by_key = {run_key(state): state for state in states}
        for report in reports:
            run = report.run
            # If the run was leased again meanwhile, it has another grant. The answer is
            # about the former grant, so the report is still due.
            if report.grant == run.grant and not run.lost:
                run.sending = False
                self._apply_answer(report, states_by_key.get(run.key, {}), sent_at)
        self.changed.notify_all()

    def all_reported(self) -> bool:
        """Return True if brokers have recorded all results."""
        return all(run.unreported_since is None for run in self.runs.values())

    def _start_report(self, run: HeldRun, *, renews: bool) -> RunReport:
        """Mark the report of a run as being sent, and return it."""
        run.sending = True
        if renews and run.open and not run.has_begun:
            # The run has waited here for a third of its lease, and no message of it was
            # begun. If this process dies now, nothing was delivered, so the renewed lease
            # must not count as a delivery.
            run.uncount()
        return RunReport.of(run, renews=renews, term=self.term)

    def _due_in_s(self, run: HeldRun, now: float, lease_now: float) -> float:
        """Return the seconds until a report or a renewal of a run is due."""
        if run.sending:
            return math.inf
        waits = [run.renewal_in_s(lease_now)]
        if run.begin_requested and not run.may_begin and run.open:
            waits.append(0.0)
        if run.unreported_since is not None:
            # A run that was lost before may be lost again: its finished messages must not
            # be repeated then.
            is_immediate = self.flushing or run.given_back or run.deliveries > 1
            is_urgent = run.is_report_urgent()
            pause_s = (
                LINGER_S if is_urgent else self.share_options.auto_commit_interval_ms / 1000
            )
            waits.append(run.unreported_since + (0.0 if is_immediate else pause_s) - now)
        return max(min(waits), run.not_before - now)

    def _apply_answer(
        self, report: RunReport, state: Mapping[str, Any], sent_at: float
    ) -> None:
        """Apply the answer to a report: `ok`, or how the lease has ended.

        lost     another member has the run
        gone     the run is leased to nobody, and its offsets may be finished
        invalid  the broker refused the report
        other    the broker could not record it: the report is repeated later
        """
        run, answer = report.run, state.get("state")
        if answer == "ok":
            run.failures = 0
            was_held_back = not run.may_begin
            run.mark_reported(report)
            if was_held_back and run.may_begin:
                self._after_begin_recorded(run)
            # Measured from the time of sending: the broker's lease starts later, so it
            # outlasts this lease.
            if report.renews and report.term == self.term:
                lease_s = state.get("lease_ms", run.lease_s * 1000) / 1000
                run.lease_until = max(run.lease_until, sent_at + lease_s)
                run.renewal_requested = False
                self._log_renewal(run)
            if run.is_finished() and run.unreported_since is None:
                self._remove(run)
        elif answer == "gone" and run.is_finished():
            # The answer to an earlier report was lost, or an operator has reset the
            # offsets.
            self._remove(run)
        elif answer in ("lost", "gone", "invalid"):
            reason = {
                "lost": "another member has leased it",
                "gone": "it is no longer leased",
                "invalid": f"its report was refused: {state.get('detail')}",
            }[answer]
            log.warning(
                "%s: %s; messages that are not done are delivered again", run, reason
            )
            if answer == "gone":
                # The offsets may be recorded as finished, so they are not reported as lost.
                run.finished = set()
            self.lose(run)
        else:
            run.back_off(max_s=MAX_PAUSE_S)

    def _after_begin_recorded(self, run: HeldRun) -> None:
        """Wake the handlers: brokers have recorded the begin of a run, so its messages may
        start. DemandBook of the kombu transport extends this.
        """
        self.on_runnable()

    def _log_renewal(self, run: HeldRun) -> None:
        """If the end of the lease was logged, log its renewal, and wake the handlers."""
        if run.expiry_logged:
            run.expiry_logged = False
            log.info("%s: leased again", run)
            self.on_runnable()

    def _give_back_late(self, now: float) -> None:
        """Give back messages that are at work for longer than max_processing_ms, and messages
        that wait for a stalled application (is_stalled()).
        """
        # A pull under way would lease the messages to this member again. An application that
        # polls is away then and would not begin with them. Worker threads may, so for them
        # only messages that wait for a stalled application are kept until the pull has ended.
        if self.pulls and not self.has_worker_threads:
            return
        is_stalled = self.is_stalled(now) and not self.pulls
        limit_ms = self.share_options.max_processing_ms
        for run in [*self.runs.values()]:
            late_offsets = [
                offset
                for offset in run.begun_at
                if run.deadline_of(offset, limit_ms) <= now and run.is_ours(offset)
            ]
            if late_offsets:
                log.warning(
                    "%s: offsets %s at work for more than max_processing_ms; they are "
                    "delivered again",
                    run,
                    late_offsets,
                )
                self.on_withdrawn(run, late_offsets)
            waiting = run.waiting_offsets() if is_stalled else ()
            if late_offsets or waiting:
                self.give_back(run, [*late_offsets, *waiting])

    def _adjust_buffered(self, run: HeldRun, sign: int) -> None:
        """Add the buffer of a run to the counts, or subtract it."""
        self.buffered += sign * len(run.buffer)
        self.buffered_bytes += sign * sum([len(message.body) for message in run.buffer])
