"""A leased run: a stretch of offsets of a queue, and the result of each."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from catmq_client.message import Message
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue

# Messages are delivered alone from this delivery on.
SUSPECT_FROM = 3
# With this many unreported results, they are reported before the run is finished:
# unreported messages come again if the process dies.
MAX_UNREPORTED = 4
# Fraction of the lease after which it is renewed.
RENEW_FRACTION = 1 / 3
# Queue, first offset and grant. A run that is leased again has another grant.
RunKey = tuple[int, int, str]


def run_key(entry: Mapping[str, Any]) -> RunKey:
    """Return the key of a run in an answer."""
    return entry["queue"], entry["first"], entry["grant"]


class HeldRun(OwnedQueue):
    """A run that is leased to this member.

    These sets divide its offsets. An open offset becomes finished or given back:

        open         waiting for the application, or at work (then also in `begun_at`)
        finished     accepted, and not reported yet
        given_back   to be delivered again, and not reported yet
        skipped      needs no handling: finished before, or left out by a filter

    A run may be *uncounted*: its lease counts as a delivery only when brokers have recorded
    that a message of it begins. So nothing of it begins before that.

    Not locked: every call is made under the lock of the lease book.
    """

    # Declared again, because pyright reads no type from an augmented assignment.
    at_work: int
    buffer: deque[Message]

    def __init__(self, entry: Mapping[str, Any], *, serial: int, sent_at: float) -> None:
        """Create it from a run in an answer to a request that was sent at `sent_at`, lease
        clock.

        `serial` distinguishes the runs of a queue, as an epoch distinguishes its
        ownerships.
        """
        topic, origin = entry["topic"], entry.get("origin_topic")
        super().__init__(
            topic=topic,
            queue=entry["queue"],
            epoch=serial,
            stopped=False,
            origin_topic=origin,
        )
        self.acquired = True
        self.first: int = entry["first"]
        self.end: int = entry["end"]
        self.grant: str = entry["grant"]
        self.deliveries: int = entry["deliveries"]
        self.lease_s: float = entry["lease_ms"] / 1000
        self.lease_until: float = sent_at + self.lease_s
        self._leased_at = time.monotonic()
        # The lease counts as a delivery only after a begin is recorded; see the class.
        self.uncounted: bool = entry.get("uncounted", False)
        # The application would begin with a message of it now, so brokers must record that.
        self.begin_requested: bool = False
        # A broker has recorded the begin, or need not.
        self.may_begin: bool = not self.uncounted
        # The application has had a message of it.
        self.has_begun: bool = False
        # Neither finished nor given back.
        self.open: set[int] = set()
        # When the application got each open message, monotonic.
        self.begun_at: dict[int, float] = {}
        # Until when the application has renewed a message, monotonic. This overrides
        # max_processing_ms.
        self.renewed_until: dict[int, float] = {}
        # The application has called renew().
        self.renewal_requested = False
        # Needs no handling: finished before, or left out by a filter.
        self.skipped: set[int] = set()
        # Results that are not reported to brokers; the time of the first of them,
        # monotonic.
        self.finished: set[int] = set()
        self.given_back: set[int] = set()
        # Given back without being begun: their lease is not to count as a delivery.
        self.unseen: set[int] = set()
        self.unreported_since: float | None = None
        # A report of it is being sent.
        self.sending: bool = False
        # The end of its lease was logged.
        self.expiry_logged = False

    def __str__(self) -> str:
        return f"{self.topic} queue {self.queue} offsets {self.first} to {self.end - 1}"

    @property
    def key(self) -> RunKey:
        return self.queue, self.first, self.grant

    @property
    def in_hand(self) -> int:
        return len(self.open) - len(self.buffer)

    @property
    def waiting(self) -> int:
        """Number of messages that the application has not begun with."""
        return len(self.open) - len(self.begun_at)

    @property
    def lease_left_s(self) -> float:
        return 0.0 if self.lost else max(0.0, self.lease_until - lease_clock())

    def fill(self, messages: Iterable[Message]) -> None:
        """Add the messages. Offsets without a message need no handling."""
        self.buffer.extend(messages)
        self.open = {message.offset for message in self.buffer}
        self.skipped = set(range(self.first, self.end)) - self.open
        if not self.open:
            self._mark_unreported()

    def is_same_run(self, entry: Mapping[str, Any]) -> bool:
        """Return True if an answer has this run, under any grant, and no message that is
        new here.

        After an offset reset, a run of the same offsets also has messages that were
        finished or given back before the reset. They must be delivered, so that is another
        run.
        """
        bounds = entry["queue"], entry["first"], entry["end"]
        if (self.queue, self.first, self.end) != bounds:
            return False
        if "rows" in entry:
            offsets = {row[0] for row in entry["rows"]}
        else:
            offsets = {message["offset"] for message in entry["messages"]}
        return self.open | self.finished | self.given_back >= offsets

    def regrant(self, entry: Mapping[str, Any], *, sent_at: float) -> None:
        """Apply a new grant: the lease had ended, and this member got the run again."""
        self.grant, self.deliveries = entry["grant"], entry["deliveries"]
        if entry.get("uncounted") and self.has_begun:
            # The messages at work were counted under the former grant, and the others with
            # them.
            self.deliveries, self.uncounted = self.deliveries - 1, False
        else:
            self.uncounted = entry.get("uncounted", False)
            self.may_begin, self.begin_requested = not self.uncounted, False
        self.lease_s = entry["lease_ms"] / 1000
        self.lease_until = sent_at + self.lease_s
        self.sending = False

    def fencing_fields(self) -> dict[str, Any]:
        return {"grant": self.grant}

    def blocks_handlers(self) -> bool:
        """Return True if no handler may begin: the lease has ended, or a begin must be
        recorded first.
        """
        return self.has_lapsed() or not self.may_begin

    def has_lapsed(self) -> bool:
        """Return True if the lease has ended, so that another member may have the run."""
        return self.lease_left_s <= 0

    def awaits_begin_record(self) -> bool:
        """Return True if messages of it wait until brokers record that they begin."""
        return not self.may_begin and not self.begin_requested and bool(self.open)

    def can_hand_out(self) -> bool:
        """Return True if the application may have a message of it.

        If the run was delivered before, a worker may have died of a message in it. So the
        broker must know first which messages are finished.
        """
        return super().can_hand_out() and not (self.deliveries > 1 and self.finished)

    def is_suspended(self) -> bool:
        return super().is_suspended() or self.blocks_handlers()

    def is_outdated(self, offset: int, version: int) -> bool:
        return offset not in self.open

    def begin(self, offset: int) -> None:
        self.at_work += 1
        self.begin_processing(offset, time.monotonic())

    def begin_processing(self, offset: int, now: float) -> None:
        """Note that the application has a message from now on."""
        self.has_begun = True
        self.begun_at[offset] = now

    def is_ours(self, offset: int) -> bool:
        """Return True if an offset is open here, so that its result can still be set."""
        return (
            not self.lost and offset in self.open and offset not in self.unstored_failures
        )

    def finish(self, offset: int, version: int) -> None:
        if self.is_ours(offset):
            self._set_result(offset)
            self.finished.add(offset)

    def finish_all(self) -> None:
        """Finish all messages that the application got, except failed messages not stored
        for a retry.
        """
        for offset in [*self.begun_at]:
            self.finish(offset, self.version)

    def undelivered_offsets(self) -> set[int]:
        """Return offsets that neither wait in the buffer nor are at work.

        An exception that was raised into the application's thread has interrupted their
        delivery.
        """
        return self.waiting_offsets() - {message.offset for message in self.buffer}

    def waiting_offsets(self) -> set[int]:
        """Return the offsets that the application has not begun with."""
        return self.open - self.begun_at.keys() - self.unstored_failures

    def give_back(self, offset: int) -> None:
        """Let an offset be delivered again, at once and to any member."""
        if self.is_ours(offset):
            if offset not in self.begun_at:
                self.unseen.add(offset)
            self._set_result(offset)
            self.given_back.add(offset)
            self.buffer = type(self.buffer)(
                message for message in self.buffer if message.offset != offset
            )

    def mark_failed(self, offset: int) -> None:
        if offset in self.open:
            self.unstored_failures.add(offset)

    def mark_reported(self, report: RunReport) -> None:
        """Remove the results that a broker has recorded."""
        self.finished -= report.finished
        self.given_back -= report.given_back
        self.unseen -= report.given_back
        self.skipped -= report.finished
        if report.begun:
            self.may_begin, self.begin_requested = True, False
        if not (self.finished or self.given_back):
            self.unreported_since = None

    def uncount(self) -> None:
        """Have the lease count as a delivery only after the next recorded begin."""
        self.uncounted, self.may_begin = True, False

    def renewal_in_s(self, lease_now: float) -> float:
        """Return the seconds until the renewal is due, or infinity if no message is open."""
        if self.is_finished():
            return math.inf
        renew_at = self.lease_until - self.lease_s * (1 - RENEW_FRACTION)
        return 0.0 if self.renewal_requested else renew_at - lease_now

    def deadline_of(self, offset: int, limit_ms: int | None) -> float:
        """Return when a message has been at work for too long, monotonic.

        That is after `limit_ms` (None: never), or when the application's renew() ends.
        """
        end = math.inf if limit_ms is None else self.begun_at[offset] + limit_ms / 1000
        return max(end, self.renewed_until.get(offset, 0.0))

    def is_suspect(self) -> bool:
        """Return True for a recent lease of messages with which workers were lost at least
        twice.
        """
        is_recent = time.monotonic() - self._leased_at < self.lease_s
        return bool(self.open) and self.deliveries >= SUSPECT_FROM and is_recent

    def is_report_urgent(self) -> bool:
        """Return True if brokers should soon know the results of messages."""
        has_many_results = len(self.finished) >= MAX_UNREPORTED
        return (
            self.is_finished()
            or bool(self.given_back)
            or self.deliveries > 1
            or has_many_results
        )

    def is_finished(self) -> bool:
        """Return True if no message is open."""
        return not self.open

    def _set_result(self, offset: int) -> None:
        """Remove an offset from `open`; the caller records its result."""
        self.open.discard(offset)
        self.begun_at.pop(offset, None)
        self.renewed_until.pop(offset, None)
        self._mark_unreported()

    def _mark_unreported(self) -> None:
        if self.unreported_since is None:
            self.unreported_since = time.monotonic()


@dataclass(frozen=True, slots=True)
class RunReport:
    """The results of a run when they were sent. The report may be sent repeatedly."""

    run: HeldRun
    grant: str
    finished: frozenset[int]
    given_back: frozenset[int]
    unseen: frozenset[int]
    renews: bool
    is_whole: bool
    # The number of the delivery, or 0 if the lease counted at once.
    delivery: int
    # Whether the delivery counts, or None if brokers know that.
    begun: bool | None
    # The term of the lease book when the report was made.
    term: int

    @classmethod
    def of(cls, run: HeldRun, *, renews: bool, term: int = 0) -> RunReport:
        """Return a report of the current results."""
        renews = renews and not run.is_finished()
        begun: bool | None = None
        if run.open and not run.may_begin and (renews or run.begin_requested):
            begun = run.begin_requested
        return cls(
            run=run,
            grant=run.grant,
            finished=frozenset(run.finished | run.skipped)
            if run.unreported_since is not None
            else frozenset(),
            given_back=frozenset(run.given_back),
            unseen=frozenset(run.unseen),
            renews=renews,
            is_whole=run.is_finished() and not run.given_back,
            delivery=run.deliveries if run.uncounted else 0,
            begun=begun,
            term=term,
        )

    def view(self) -> dict[str, Any]:
        """Return the report as a *Done* of the API."""
        view: dict[str, Any] = {
            "queue": self.run.queue,
            "first": self.run.first,
            "grant": self.grant,
        }
        if self.is_whole:
            return {**view, "all": True}
        if self.finished:
            view["finished"] = to_ranges(self.finished)
        if self.given_back - self.unseen:
            view["release"] = sorted(self.given_back - self.unseen)
        if self.unseen:
            view["unseen"] = sorted(self.unseen)
        if self.begun is not None:
            view["begun"] = self.begun
        if self.delivery and (self.given_back or self.begun is not None):
            view["delivery"] = self.delivery
        return {**view, "renew": True} if self.renews else view


def to_ranges(offsets: Iterable[int]) -> list[list[int]]:
    """Return offsets as [from, to] ranges, `to` not included.

    >>> to_ranges({7, 3, 4, 5})
    [[3, 6], [7, 8]]
    """
    result: list[list[int]] = []
    for offset in sorted(offsets):
        if result and result[-1][1] == offset:
            result[-1][1] = offset + 1
        else:
            result.append([offset, offset + 1])
    return result
