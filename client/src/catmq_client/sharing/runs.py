"""A leased run: a stretch of offsets of one queue, and what has become of each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from catmq_client.message import Message
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue

# Messages are delivered one by one from this delivery on.
SUSPECT_FROM = 3
# With so many finished messages to tell of, the rest of the run is not waited for: they
# come again if the
# process dies.
MOST_UNTOLD = 4
# Part of the lease after which it is renewed.
RENEWED_AFTER = 1 / 3
# Queue, first offset and grant: a run that is leased again comes under another grant.
RunKey = tuple[int, int, str]


def run_key(item: Mapping[str, Any]) -> RunKey:
    return item["queue"], item["first"], item["grant"]


def _offsets_of(item: Mapping[str, Any]) -> set[int]:
    """Return the offsets of the messages of a run in an answer."""
    if "rows" in item:
        return {row[0] for row in item["rows"]}
    return {message["offset"] for message in item["messages"]}


class HeldRun(OwnedQueue):
    """A run that this member holds. Each of its offsets is open, finished, or on its way
    back to the group.

    Not locked: every call is made under the lock of the lease book.
    """

    def __init__(self, item: Mapping[str, Any], *, serial: int, sent_at: float) -> None:
        """`item`: the run in an answer, asked for at `sent_at`, lease clock. `serial` tells
        runs apart.
        """
        topic, origin = item["topic"], item.get("origin_topic")
        super().__init__(
            topic=topic,
            queue=item["queue"],
            epoch=serial,
            stopped=False,
            origin_topic=origin,
        )
        self.acquired = True
        self.first: int = item["first"]
        self.end: int = item["end"]
        self.grant: str = item["grant"]
        self.deliveries: int = item["deliveries"]
        self.lease_s: float = item["lease_ms"] / 1000
        self.lease_until = sent_at + self.lease_s
        self._leased_at = time.monotonic()
        # The lease counts as a delivery only when a broker has been told that a message of
        # it begins.
        # So nothing of it begins before that.
        self.uncounted: bool = item.get("uncounted", False)
        # The application would begin with a message of it now: brokers are to be told.
        self.wants_begin = False
        # A broker recorded that it begins.
        self.may_begin = not self.uncounted
        # The application had a message of it.
        self.has_begun = False
        # Delivered, and neither finished nor given back.
        self.open: set[int] = set()
        # Those of them that the application got, with the time, monotonic.
        self.since: dict[int, float] = {}
        # Until when the application wants one of them, monotonic; that outweighs
        # max_processing_ms.
        self.wanted_until: dict[int, float] = {}
        # The application asked for a longer lease.
        self.wants_renewal = False
        # What needs nobody: finished before, or left out by a filter.
        self.skipped: set[int] = set()
        # Finished, or to be delivered again, of which the broker does not know yet; since
        # when, monotonic.
        self.finished: set[int] = set()
        self.leaving: set[int] = set()
        # Those on their way back that the application never got: that they were leased does
        # not count.
        self.unseen: set[int] = set()
        self.news_since: float | None = None
        # A report of it is under way.
        self.sending = False
        # It was said that the lease has run out.
        self.told_late = False

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
        """The number of messages that the application has not begun with."""
        return len(self.open) - len(self.since)

    @property
    def lease_left_s(self) -> float:
        return 0.0 if self.lost else max(0.0, self.lease_until - lease_clock())

    def fill(self, messages: Iterable[Message]) -> None:
        """Take over the messages; what the answer left out needs nobody."""
        self.buffer.extend(messages)
        self.open = {message.offset for message in self.buffer}
        self.skipped = set(range(self.first, self.end)) - self.open
        if not self.open:
            self._note()

    def is_same(self, item: Mapping[str, Any]) -> bool:
        """Return True if an answer has this run, under whatever grant, and no message that
        is new here.

        After an offset reset a run of the same offsets also has messages that were
        finished, or that left the run, before the reset. Those must be delivered, so it is
        another run.
        """
        if (self.queue, self.first, self.end) != (
            item["queue"],
            item["first"],
            item["end"],
        ):
            return False
        return self.open | self.finished | self.leaving >= _offsets_of(item)

    def granted_again(self, item: Mapping[str, Any], *, sent_at: float) -> None:
        """Its lease had run out, and this member got it again: what is at work goes on."""
        self.grant, self.deliveries = item["grant"], item["deliveries"]
        if item.get("uncounted") and self.has_begun:
            # What is at work was counted under the former grant, and what has not begun
            # with it.
            self.deliveries, self.uncounted = self.deliveries - 1, False
        else:
            self.uncounted = item.get("uncounted", False)
            self.may_begin, self.wants_begin = not self.uncounted, False
        self.lease_s = item["lease_ms"] / 1000
        self.lease_until = sent_at + self.lease_s
        self.sending = False

    def fence(self) -> dict[str, Any]:
        return {"grant": self.grant}

    def rests(self) -> bool:
        """Return True if no handler may begin: the lease is over, or brokers are to be told
        first.
        """
        return self.has_lapsed() or not self.may_begin

    def has_lapsed(self) -> bool:
        """Return True if the lease is over: perhaps somebody else has the run."""
        return self.lease_left_s <= 0

    def begins_later(self) -> bool:
        """Return True if messages of it wait until brokers are told that they begin."""
        return not self.may_begin and not self.wants_begin and bool(self.open)

    def can_hand_out(self) -> bool:
        """Return True if the application may have a message of it.

        What was lost with a worker before may be lost again: the broker is to know first
        what is finished.
        """
        return super().can_hand_out() and not (self.deliveries > 1 and self.finished)

    def is_shut(self) -> bool:
        return super().is_shut() or self.rests()

    def has_left(self, offset: int, version: int) -> bool:
        return offset not in self.open

    def begin(self, offset: int) -> None:
        self.running += 1
        self.hand_over(offset, time.monotonic())

    def hand_over(self, offset: int, now: float) -> None:
        """The application has a message from now on."""
        self.has_begun = True
        self.since[offset] = now

    def is_ours(self, offset: int) -> bool:
        """Return True if something may still be said about an offset."""
        return not self.lost and offset in self.open and offset not in self.reporting

    def finish(self, offset: int, version: int) -> None:
        if self.is_ours(offset):
            self._close(offset)
            self.finished.add(offset)

    def finish_all(self) -> None:
        """Finish what the application got, except for what failed and is not stored for a
        retry yet.
        """
        for offset in [*self.since]:
            self.finish(offset, self.version)

    def strayed(self) -> set[int]:
        """Return offsets that neither wait nor were given out: an interrupt came in
        between.
        """
        return self.waiting_offsets() - {message.offset for message in self.buffer}

    def waiting_offsets(self) -> set[int]:
        """Return the offsets that the application never got."""
        return self.open - self.since.keys() - self.reporting

    def give_back(self, offset: int) -> None:
        """Let an offset be delivered again, now and to anybody."""
        if self.is_ours(offset):
            if offset not in self.since:
                self.unseen.add(offset)
            self._close(offset)
            self.leaving.add(offset)
            self.buffer = type(self.buffer)(
                one for one in self.buffer if one.offset != offset
            )

    def report(self, offset: int) -> None:
        if offset in self.open:
            self.reporting.add(offset)

    def sent(self, report: RunReport) -> None:
        """The broker recorded a report."""
        self.finished -= report.finished
        self.leaving -= report.leaving
        self.unseen -= report.leaving
        self.skipped -= report.finished
        if report.begun:
            self.may_begin, self.wants_begin = True, False
        if not (self.finished or self.leaving):
            self.news_since = None

    def hold_back(self) -> None:
        """Let the lease count for nothing until brokers are told that a message of it
        begins.
        """
        self.uncounted, self.may_begin = True, False

    def renewal_in_s(self, lease_now: float) -> float:
        """Return the seconds until it is to be renewed; infinite when nothing of it is held
        any more.
        """
        if self.is_over():
            return math.inf
        renew_at = self.lease_until - self.lease_s * (1 - RENEWED_AFTER)
        return 0.0 if self.wants_renewal else renew_at - lease_now

    def ends_at(self, offset: int, limit_ms: int | None) -> float:
        """Return when a message has been at work for too long, monotonic: after `limit_ms`
        (None: never), or when the application wanted."""
        end = math.inf if limit_ms is None else self.since[offset] + limit_ms / 1000
        return max(end, self.wanted_until.get(offset, 0.0))

    def is_suspect(self) -> bool:
        """Return True for a lease after workers were lost with these messages, twice at
        least.
        """
        is_new = time.monotonic() - self._leased_at < self.lease_s
        return bool(self.open) and self.deliveries >= SUSPECT_FROM and is_new

    def has_urgent_news(self) -> bool:
        """Return True if the broker is to know soon what became of messages."""
        is_much = len(self.finished) >= MOST_UNTOLD
        return self.is_over() or bool(self.leaving) or self.deliveries > 1 or is_much

    def is_over(self) -> bool:
        """Return True if each offset is finished or given back."""
        return not self.open

    def _close(self, offset: int) -> None:
        self.open.discard(offset)
        self.since.pop(offset, None)
        self.wanted_until.pop(offset, None)
        self._note()

    def _note(self) -> None:
        if self.news_since is None:
            self.news_since = time.monotonic()


@dataclass(frozen=True, slots=True)
class RunReport:
    """News of a run, as they were when they were sent. They may be repeated."""

    run: HeldRun
    grant: str
    finished: frozenset[int]
    leaving: frozenset[int]
    unseen: frozenset[int]
    renews: bool
    is_whole: bool
    # The number of the delivery, unless the lease counted at once.
    delivery: int
    # Whether it counts; None if that is known.
    begun: bool | None
    # That of the lease book when the report was made.
    term: int

    @classmethod
    def of(cls, run: HeldRun, *, renews: bool, term: int = 0) -> RunReport:
        renews = renews and not run.is_over()
        begun: bool | None = None
        if run.open and not run.may_begin and (renews or run.wants_begin):
            begun = run.wants_begin
        return cls(
            run=run,
            grant=run.grant,
            finished=frozenset(run.finished | run.skipped)
            if run.news_since is not None
            else frozenset(),
            leaving=frozenset(run.leaving),
            unseen=frozenset(run.unseen),
            renews=renews,
            is_whole=run.is_over() and not run.leaving,
            delivery=run.deliveries if run.uncounted else 0,
            begun=begun,
            term=term,
        )

    def view(self) -> dict[str, Any]:
        """Return it as a *Done* of the API."""
        view: dict[str, Any] = {
            "queue": self.run.queue,
            "first": self.run.first,
            "grant": self.grant,
        }
        if self.is_whole:
            return {**view, "all": True}
        if self.finished:
            view["finished"] = ranges(self.finished)
        if self.leaving - self.unseen:
            view["release"] = sorted(self.leaving - self.unseen)
        if self.unseen:
            view["unseen"] = sorted(self.unseen)
        if self.begun is not None:
            view["begun"] = self.begun
        if self.delivery and (self.leaving or self.begun is not None):
            view["delivery"] = self.delivery
        return {**view, "renew": True} if self.renews else view


def ranges(offsets: Iterable[int]) -> list[list[int]]:
    """Return offsets as [from, to] ranges, `to` not included.

    >>> ranges({7, 3, 4, 5})
    [[3, 6], [7, 8]]
    """
    found: list[list[int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1][1] = offset + 1
        else:
            found.append([offset, offset + 1])
    return found
