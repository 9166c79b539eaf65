"""Kinds of faults, what each means and what to do about it; and the report of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, TypeVar

from messagestore.verify.ranges import Range, shown
from metadata.groups.expected_state import ExpectedQueue

Judged = TypeVar("Judged", "Finding | str", "Finding")
MOST = 100  # findings of one kind in one queue


class Kind(NamedTuple):
    """A kind of finding; `repair` says what the repair does where it is safe, '' where there is none."""

    means: str
    advice: str
    repair: str = ""


_NO_SENDS = "Set its node read_only, so that nothing is stored meanwhile."
_BY_HAND = "Find out who wrote to the node's tables: no broker does this."

QUEUE_KINDS = {  # found in the messages, heads and positions of a topic
    "missing": Kind(
        "Stored messages are gone. Consumers stop in front of them (state `corrupt`) and skip nothing.",
        "Restore the rows from a replica or a backup. If they are lost for good, declare it with a row in "
        "queue_gap (queue_id, from_offset, to_offset, cause; to_offset is the first that is there again): "
        "consumers are told, and go on behind it.",
    ),
    "head_behind": Kind(
        "The head is not above the last row: sends to the queue fail (store_corrupt), and rows from the head "
        "on are not delivered.",
        f"{_NO_SENDS} If the rows are right, set queue_head.head to the last offset + 1.",
    ),
    "head_fell": Kind(
        "A queue's head is lower than it was: its node lost the latest messages, or is an older copy, and "
        "gives their offsets to other messages.",
        "Take the node offline before more is stored, and run manage.py verify for the topic. If a backup "
        "was restored: manage.py adopt_restored_node. If there is a replica: manage.py promote_node.",
    ),
    "head_missing": Kind(
        "A queue has no head row: nothing can be sent to it or read from it.",
        "Run manage.py verify for the topic; restore the row of queue_head from a replica or a backup.",
    ),
    "unreadable": Kind(
        "The queue's table is missing, was altered, or may not be read by the node's account.",
        "The node's answer says which. Restore the table, or the right.",
    ),
    "low_outside": Kind(
        "The lowest kept offset lies outside 0 … head: every position counts as cleaned.", _BY_HAND
    ),
    "gap_above_head": Kind(
        "A gap is declared where messages are yet to be stored: consumers would skip them.",
        "Remove or shorten the row in queue_gap, unless a promotion is under way on this node.",
    ),
    "row_in_gap": Kind(
        "A row lies where a gap is declared: consumers that jump over the gap never get it.",
        "Shorten the row in queue_gap to what is really missing.",
    ),
    "time_falls": Kind(
        "A message was stored earlier than the one before it: look-ups, resets and retention by time may "
        "stop at the wrong place.",
        "Rows were written or changed by hand, or the table comes from elsewhere. Set stored_at right.",
    ),
    "batch_outside": Kind(
        "A sender holds a receipt for offsets that the queue does not have, and its repeat gets it again.",
        "The head was set back, or sent_batch was written by hand. If the messages were never stored, "
        "delete the row, so that a repeat stores them.",
    ),
    "batch_in_gap": Kind(
        "A batch is remembered as stored although its messages were declared lost: a repeat is not stored.",
        "If the rows are gone, delete the row of sent_batch, so that a repeat stores them.",
    ),
    "batch_overlap": Kind(
        "Two batches claim the same offsets: one sender's receipt is for another's messages.",
        f"Compare both rows of sent_batch with the messages. {_BY_HAND}",
    ),
    "batch_malformed": Kind("A row of sent_batch that no send can have written.", _BY_HAND),
    "batch_differs": Kind(
        "The messages are not those that were sent: key, tag, headers, body or trace id changed.",
        f"Restore them from a replica or a backup. {_BY_HAND}",
    ),
    "batch_twice": Kind(
        "One batch is stored on two nodes: its messages are delivered twice.",
        "Tell the consumers' owners which offsets are double; handlers that are idempotent do not mind.",
    ),
    "unclaimed": Kind(
        "Rows that no send is remembered for, between or behind such that are: probably a second copy.",
        f"Compare them with their neighbours. {_BY_HAND}",
    ),
    "committed_above": Kind(
        "The position is above the head: the group would skip what is stored next.",
        "Move it: catmq offsets reset GROUP TOPIC --to latest --queue QUEUE",
    ),
    "committed_below": Kind(
        "The position is negative: reading from it fails.",
        "Move it: catmq offsets reset GROUP TOPIC --to earliest --queue QUEUE",
    ),
    "reader_missing": Kind(
        "The group has no position on the node: nobody can own the queue, and it is not read.",
        "Subscribe anew: catmq unsubscribe GROUP TOPIC, then catmq subscribe GROUP TOPIC. That forgets the "
        "group's other positions in the topic: note them first (catmq lag GROUP).",
    ),
    "position_missing": Kind(
        "Metadata does not know that a group reads some queues: no member gets them, and they are not read.",
        "Repair it: manage.py consistency. The positions themselves are on the nodes.",
        "Adds the rows and shares the group's queues anew. Reading goes on at the positions of the nodes.",
    ),
    "epoch_ahead": Kind(
        "The node knows a later owner than metadata does: metadata lost its latest writes.",
        "The next acquire raises metadata's epoch by itself. Was metadata restored? Look for other losses.",
    ),
    "state_differs": Kind(
        "Node and metadata disagree about whether the queue takes messages; for sends the node decides.",
        "Set the state of the topic's queue or node again, as it shall be.",
    ),
    "node_epoch_differs": Kind(
        "Every send to the queue is refused: its head belongs to another term of the node.",
        "Was the node promoted or restored by hand? Let promote_node or adopt_restored_node do it.",
    ),
}
INSTALLATION_KINDS = {  # found where metadata and nodes are compared as a whole, beside some of the above
    "identity_differs": Kind(
        "The node's address answers with other data than the node's, or with none: it is not served.",
        "Correct the address, or restore the node. Nothing else was checked on it.",
    ),
    "table_missing": Kind(
        "A queue has no table on its node: sends to it and pulls from it fail.",
        "If messages were stored there, restore the table from a replica or a backup: an empty one would "
        "hide the loss. Then run manage.py verify.",
        "Makes the table. No message was ever stored in the queue, so none is missing.",
    ),
    "table_unknown": Kind(
        "A table of messages belongs to no queue: nobody reads it, and it takes room.",
        "It may hold messages. If metadata was restored, restore a newer copy; otherwise save what is in the "
        "table and drop it by hand.",
        "Drops the table, which is empty, and never held a message.",
    ),
    "head_unknown": Kind(
        "A head row is left of a queue that is gone, with its table.",
        "Messages were stored once, and their table is gone: look for it before you delete the row by hand.",
        "Deletes the row. No message was ever stored in the queue.",
    ),
    "readers_unknown": Kind(
        "Positions are left on a node of a subscription or an instance that is gone.",
        "Repair it; nobody reads by these positions.",
        "Deletes these positions. No message is touched.",
    ),
    "position_unknown": Kind(
        "Metadata has positions of a group in queues that it does not subscribe to: members may read them.",
        "Repair it; the group subscribes to the topic no more.",
        "Deletes these rows of metadata. No message and no position on a node is touched.",
    ),
    "failure_topic_missing": Kind(
        "A subscription has no failure topic: what its handlers fail at stays where it is, in the way.",
        "Repair it. If that fails: is a failure node registered, and does it answer?",
        "Makes the failure topic with its tables.",
    ),
    "failure_topic_unknown": Kind(
        "A failure topic is left of a subscription that is gone: what lies in it is not tried again.",
        "It may hold messages. Subscribe the group again, or delete the topic by name once you have looked.",
    ),
    "heartbeat_missing": Kind(
        "Members of a group can never be taken for dead: nothing says when they were heard last.",
        "Repair it.",
        "Says that they were heard now. Those that are gone lose their queues after the session timeout.",
    ),
    "member_silent": Kind(
        "Members are silent for long, and still own their queues: nobody takes the dead out.",
        "Does a broker run, and reach metadata? Its loop `expiry` does this; look into its log.",
    ),
    "worker_behind": Kind(
        "A worker of a broker uses an old picture of metadata.",
        "Look into the broker's log for why it cannot load a newer one; restart the broker.",
    ),
}
KINDS = QUEUE_KINDS | INSTALLATION_KINDS
# One for each queue, named in the key; what moves between two looks is not part of the subject.
ONE_QUEUE = ("table_missing", "table_unknown", "head_missing", "head_fell", "head_unknown")
MOVING = ("head_behind", "gap_above_head", "worker_behind")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: where (`offsets 5 … 9`, `group billing`), and what it is, in figures.

    `first` and `end` are the offsets concerned, where there are any. `safe`: the repair may be done; then
    `node`, `group` and `topic` are ids, 0 where it is about none, and `ids` are queues, or members.
    """

    kind: str
    where: str
    what: str
    first: int | None = None
    end: int | None = None
    _: KW_ONLY
    safe: bool = False
    node: int = 0
    group: int = 0
    topic: int = 0
    ids: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Key of a finding, by which a later check knows it, and a repair is asked for."""
        about = (self.node, self.group, self.topic, self.ids[0] if self.kind in ONE_QUEUE else 0)
        return "-".join([self.kind, *map(str, about)])

    @property
    def means(self) -> str:
        return KINDS[self.kind].means

    @property
    def advice(self) -> str:
        """Remedy for it: the repair if it is safe."""
        return KINDS[self.kind].repair if self.safe else KINDS[self.kind].advice


def seen_twice(first: Iterable[Judged], second: Iterable[Judged]) -> list[Judged]:
    """Return what two looks a moment apart have in common, as the second saw it: the rest was under way."""
    known = {_subject(one) for one in first}
    return [one for one in second if _subject(one) in known]


def _subject(judged: Finding | str) -> tuple[str, ...]:
    """Return the subject of a finding, without figures that move; of a note, the reader before its colon."""
    if isinstance(judged, str):
        return ("note", judged.partition(":")[0])
    return (judged.kind,) if judged.kind in MOVING else (judged.kind, judged.where)


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
        return self.expected.queue

    @property
    def node_id(self) -> int:
        return self.expected.node_id

    def add(self, finding: Finding) -> None:
        """Take a finding in, up to MOST of its kind; holes that touch become one."""
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

    def discard(self) -> None:
        """Drop what was found: the queue was deleted while it was looked at."""
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
    """Findings of a run: of queues in their reports, of nodes, groups and brokers in `others`.

    `complete` is False if it was stopped; `unchecked`: nodes that could not be looked at, {name: why}.
    """

    queues: list[QueueReport] = field(default_factory=list)
    others: list[Finding] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*(finding for one in self.queues for finding in one.findings), *self.others)

    @property
    def unseen(self) -> list[QueueReport]:
        return [one for one in self.queues if one.unseen is not None]
