"""Findings of a run: a report per queue, filled while it goes on, so that one that is stopped has it, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from messagestore.verify.findings import Finding
from messagestore.verify.ranges import Range, shown
from metadata.groups.expected import ExpectedQueue

MOST = 100  # findings of one kind in one queue


class Opening(NamedTuple):
    """A queue's bounds when the run began; its rows are looked at from `start` to `head`.

    `since_ms` is the time that `start` stands for, 0 if all that is kept is of interest.
    """

    start: int
    low: int
    head: int
    gaps: list[Range]
    since_ms: int


@dataclass(slots=True)
class QueueReport:
    """A queue: how far it was looked at (`reached`, an offset), what was counted and found.

    `unseen` says why it could not be looked at whole, None if it was. Notes are odd, but explained.
    """

    expected: ExpectedQueue
    opening: Opening | None = None
    reached: int = 0
    rows: int = 0
    batches: int = 0
    readers: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unseen: str | None = None

    @property
    def id(self) -> int:
        """The queue's id."""
        return self.expected.queue

    @property
    def node_id(self) -> int:
        """The id of its node."""
        return self.expected.node_id

    def add(self, finding: Finding) -> None:
        """Takes a finding in, up to MOST of its kind; holes that touch become one."""
        last = self.findings[-1] if self.findings else None
        if last is not None and finding.kind == last.kind == "missing" and finding.first == last.end:
            self.findings[-1] = missing(int(last.first or 0), int(finding.end or 0))
        elif not self.full(finding.kind):
            self.findings.append(finding)

    def full(self, kind: str) -> bool:
        """Return True if no more findings of a kind are taken in; the notes say so then."""
        is_full = sum(one.kind == kind for one in self.findings) >= MOST
        text = f"{MOST} findings of kind {kind}: further ones are not listed"
        if is_full and text not in self.notes:
            self.notes.append(text)
        return is_full

    def forget(self) -> None:
        """The queue was deleted while it was looked at: nothing of it counts."""
        self.findings.clear()
        self.unseen = None
        self.notes = ["the topic was deleted meanwhile"]


def missing(first: int, end: int) -> Finding:
    """Rows that nothing explains the absence of."""
    count = end - first
    what = f"{count} message{'s are' if count > 1 else ' is'} missing; no gap is declared there"
    return Finding("missing", shown(first, end), what, first, end)


@dataclass(slots=True)
class Report:
    """All queues of a run. `complete` is False if it was stopped."""

    queues: list[QueueReport]
    complete: bool = False

    @property
    def findings(self) -> int:
        """Number of findings."""
        return sum(len(one.findings) for one in self.queues)

    @property
    def unseen(self) -> list[QueueReport]:
        """The queues that could not be looked at whole."""
        return [one for one in self.queues if one.unseen is not None]
