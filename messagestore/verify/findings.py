"""The kinds of findings with their meaning and advice, and the report of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, TypeVar

from messagestore.verify.ranges import Range, shown
from metadata.groups.expected_state import ExpectedQueue

Judgement = TypeVar("Judgement", "Finding | str", "Finding")
MOST = 100  # findings of a kind that are listed for a queue


class Kind(NamedTuple):
    """A kind of finding. `repair` describes a safe repair, '' if there is no safe repair."""

    means: str
    advice: str
    repair: str = ""


_NO_SENDS = "Set its node read_only, so that nothing is stored meanwhile."
_BY_HAND = "Find out who wrote to the node's tables: no broker does this."

QUEUE_KINDS = {  # found in the messages and offsets of a topic
    "missing": Kind(
        "Stored messages are missing. Consumers stop before them (state `corrupt`) and "
        "skip nothing.",
        "Restore the rows from a replica or a backup. If they are lost for good, declare a "
        "gap: insert a row "
        "in queue_gap (queue_id, from_offset, to_offset, cause); to_offset is the first "
        "offset after it. "
        "Consumers are then told of the loss and continue after the gap.",
    ),
    "head_behind": Kind(
        "The log end offset is not above the last row. Sends to the queue fail "
        "(store_corrupt), and rows "
        "at or above it are not delivered.",
        f"{_NO_SENDS} If the rows are correct, set queue_head.head to the last offset + 1.",
    ),
    "head_fell": Kind(
        "The log end offset of a queue is lower than before. Its node lost the latest messages "
        "or is an older copy, and assigns their offsets to other messages.",
        "Take the node offline before more messages are stored, and run manage.py verify for the "
        "topic. If a backup was restored, run manage.py adopt_restored_node. If there is a "
        "replica, run manage.py promote_node.",
    ),
    "head_missing": Kind(
        "A queue has no row in queue_head. Sends to it and pulls from it fail.",
        "Run manage.py verify for the topic, and restore the row of queue_head from a "
        "replica or a backup.",
    ),
    "unreadable": Kind(
        "The queue's table is missing, was altered, or may not be read by the node's account.",
        "The node's error says which. Restore the table, or grant the right.",
    ),
    "low_outside": Kind(
        "The log start offset is below 0 or above the log end offset. All offsets count as "
        "deleted.",
        _BY_HAND,
    ),
    "gap_above_head": Kind(
        "A declared gap reaches above the log end offset. Consumers would skip messages "
        "stored there later.",
        "Delete or shorten the row in queue_gap, unless the node is being promoted.",
    ),
    "row_in_gap": Kind(
        "A message is stored inside a declared gap. Consumers skip the gap and never receive it.",
        "Shorten the row in queue_gap to the offsets that are missing.",
    ),
    "time_falls": Kind(
        "A message has an earlier stored_at than the message before it. Search, resets and "
        "retention by "
        "time may use a wrong offset.",
        "Rows were changed by hand, or the table was copied from elsewhere. Correct stored_at.",
    ),
    "batch_outside": Kind(
        "A batch has offsets that the queue does not have. A repeated send gets this "
        "receipt again.",
        "The log end offset was lowered, or sent_batch was written by hand. If the "
        "messages were never "
        "stored, delete the row, so that a repeated send stores them.",
    ),
    "batch_in_gap": Kind(
        "A batch lies in a declared gap. A repeated send of it is not stored.",
        "If its messages are missing, delete its row in sent_batch, so that a repeated "
        "send stores them.",
    ),
    "batch_overlap": Kind(
        "Two batches claim the same offsets. One sender has a receipt for messages of the other.",
        f"Compare both rows of sent_batch with the messages. {_BY_HAND}",
    ),
    "batch_malformed": Kind(
        "A row in sent_batch is invalid: no send writes such a row.", _BY_HAND
    ),
    "batch_differs": Kind(
        "The messages differ from those that were sent, in key, tag, headers, body or trace id.",
        f"Restore them from a replica or a backup. {_BY_HAND}",
    ),
    "batch_twice": Kind(
        "One batch is stored on two nodes. Its messages are delivered twice.",
        "Tell the owners of the consumers which offsets are duplicates. Idempotent "
        "handlers need no change.",
    ),
    "unclaimed": Kind(
        "Rows belong to no batch, although batches of that age are still stored. Probably "
        "a second copy.",
        f"Compare them with the rows before and after. {_BY_HAND}",
    ),
    "committed_above": Kind(
        "The committed offset is above the log end offset. The group would skip the next messages.",
        "Reset it: catmq offsets reset GROUP TOPIC --to latest --queue QUEUE",
    ),
    "leases_wrong": Kind(
        "The leases of a share group contradict each other or its position. Messages may "
        "be delivered to two "
        "members, or not at all.",
        "Reset the group to its committed offset, which ends all leases: catmq offsets "
        "reset GROUP TOPIC "
        "--to N --queue QUEUE",
    ),
    "committed_below": Kind(
        "The committed offset is negative. Pulls from it fail.",
        "Reset it: catmq offsets reset GROUP TOPIC --to earliest --queue QUEUE",
    ),
    "reader_missing": Kind(
        "The group has no reader row on the node. No member can own the queue, and it is not read.",
        "Subscribe again: catmq unsubscribe GROUP TOPIC, then catmq subscribe GROUP TOPIC. "
        "This deletes all "
        "committed offsets of the group in the topic. Note them first: catmq lag GROUP",
    ),
    "position_missing": Kind(
        "Metadata lacks rows for some queues of a subscription. No member gets these queues, so "
        "they are not read.",
        "Repair it with manage.py consistency. The committed offsets are on the nodes.",
        "Adds the rows and rebalances the group. Its members continue at the committed "
        "offsets of the nodes.",
    ),
    "epoch_ahead": Kind(
        "The node has a higher epoch than metadata: metadata lost its latest writes.",
        "The next acquire corrects the epoch. If metadata was restored, run manage.py consistency.",
    ),
    "state_differs": Kind(
        "The queue has different states on its node and in metadata. Sends follow the node.",
        "Set the state of the queue or the node again.",
    ),
    "node_epoch_differs": Kind(
        "The queue and its node have different epochs. Every send to the queue is refused.",
        "If the node was promoted or restored by hand, run manage.py promote_node or "
        "adopt_restored_node.",
    ),
}
# found by comparing metadata with nodes, in addition to some of the above
INSTALLATION_KINDS = {
    "identity_differs": Kind(
        "The database at the node's address has the data of another node, or none. Brokers do "
        "not serve the node.",
        "Correct the address, or restore the node. Nothing else was checked on it.",
    ),
    "table_missing": Kind(
        "A queue has no table on its node. Sends to it and pulls from it fail.",
        "If messages were stored there, restore the table from a replica or a backup. An empty "
        "table would hide the loss. Then run manage.py verify.",
        "Creates the table. No message was ever stored in the queue, so none is missing.",
    ),
    "table_unknown": Kind(
        "A message table belongs to no queue. It is not read and takes disk space.",
        "The table may have messages. If metadata was restored, restore a newer copy. Otherwise "
        "save the messages and drop the table by hand.",
        "Drops the table. It is empty and never had a message.",
    ),
    "head_unknown": Kind(
        "A row in queue_head belongs to a queue that was removed, and so was its table.",
        "Messages were stored in the queue, but their table is missing. Look for it before you "
        "delete the row by hand.",
        "Deletes the row. No message was ever stored in the queue.",
    ),
    "readers_unknown": Kind(
        "A node has reader rows of a subscription or an instance that was removed.",
        "Repair it. These rows are not used.",
        "Deletes these rows. No messages are changed.",
    ),
    "position_unknown": Kind(
        "Metadata assigns queues to a group that does not subscribe to their topic. "
        "Members may read them.",
        "Repair it. The group no longer subscribes to the topic.",
        "Deletes these rows of metadata. No messages and no offsets on nodes are changed.",
    ),
    "failure_topic_missing": Kind(
        "A subscription has no retry topic. Failed messages stay in their queue and block it.",
        "Repair it. If that fails, check that a retry node is registered and answers.",
        "Creates the retry topic with its tables.",
    ),
    "failure_topic_unknown": Kind(
        "A retry topic belongs to a subscription that was removed. Its messages are not retried.",
        "The topic may have messages. Subscribe the group again, or check the messages and "
        "delete the topic by name.",
    ),
    "heartbeat_missing": Kind(
        "Members of a group have no heartbeat record, so they cannot expire.",
        "Repair it.",
        "Records a heartbeat now. Members that are gone lose their queues after the "
        "session timeout.",
    ),
    "member_silent": Kind(
        "Members have sent no heartbeat for a long time, but still own queues. No broker "
        "expires them.",
        "Check that a broker runs and reaches the metadata database. Its loop `expiry` expires "
        "members; see its log.",
    ),
    "worker_behind": Kind(
        "A worker of a broker uses an old snapshot of metadata.",
        "See the broker's log for the reason, and restart the broker.",
    ),
}
KINDS = QUEUE_KINDS | INSTALLATION_KINDS
# Findings of the first kinds have a queue in their key. Figures of the second kinds change
# between two looks, so they do not identify a finding.
ONE_QUEUE = ("table_missing", "table_unknown", "head_missing", "head_fell", "head_unknown")
MOVING = ("head_behind", "gap_above_head", "worker_behind")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: where (`offsets 5 … 9`, `group billing`), and `what`, with figures.

    `first` and `end` are the offsets concerned, if any. `safe`: `repair` may mend it. Then
    `node`, `group` and `topic` are ids, 0 if it concerns none, and `ids` are queues or
    members.
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
        """A key by which a later check recognizes the finding, and by which its repair is
        requested.
        """
        subject = (
            self.node,
            self.group,
            self.topic,
            self.ids[0] if self.kind in ONE_QUEUE else 0,
        )
        return "-".join([self.kind, *map(str, subject)])

    @property
    def means(self) -> str:
        return KINDS[self.kind].means

    @property
    def advice(self) -> str:
        """The remedy: the repair if it is safe."""
        return KINDS[self.kind].repair if self.safe else KINDS[self.kind].advice


def seen_twice(first: Iterable[Judgement], second: Iterable[Judgement]) -> list[Judgement]:
    """Return the judgements of a second look that the first look had, too.

    The others were changes in progress.
    """
    first_subjects = {_subject(judgement) for judgement in first}
    return [judgement for judgement in second if _subject(judgement) in first_subjects]


def _subject(judged: Finding | str) -> tuple[str, ...]:
    """Return what identifies a judgement: a finding without figures that move, a note by
    its reader.
    """
    if isinstance(judged, str):
        return ("note", judged.partition(":")[0])
    return (judged.kind,) if judged.kind in MOVING else (judged.kind, judged.where)


class Opening(NamedTuple):
    """A queue's bounds at the beginning of the run. Rows from `start` to `head` are
    checked.

    `since_ms` is the time of `start`, 0 if everything kept is checked.
    """

    start: int
    low: int
    head: int
    gaps: list[Range]
    since_ms: int


@dataclass(slots=True)
class QueueReport:
    """A queue: how far it was checked (`reached`, an offset), counts, and findings.

    `unseen` is the reason why it was not checked completely, None if it was. Notes are
    unusual but explained.
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
        """Add a finding, up to MOST of its kind. Adjacent ranges of missing messages are
        merged.
        """
        last = self.findings[-1] if self.findings else None
        if (
            last is not None
            and finding.kind == last.kind == "missing"
            and finding.first == last.end
        ):
            self.findings[-1] = missing(int(last.first or 0), int(finding.end or 0))
        elif not self.full(finding.kind):
            self.findings.append(finding)

    def full(self, kind: str) -> bool:
        """Return True if the limit of findings of a kind is reached, and add a note then."""
        is_full = sum(finding.kind == kind for finding in self.findings) >= MOST
        text = f"{MOST} findings of kind {kind}: further ones are not listed"
        if is_full and text not in self.notes:
            self.notes.append(text)
        return is_full

    def discard(self) -> None:
        """Remove the findings, because the topic was deleted during the run."""
        self.findings.clear()
        self.unseen = None
        self.notes = ["the topic was deleted meanwhile"]


def missing(first: int, end: int) -> Finding:
    """Return the finding for missing messages that nothing explains."""
    count = end - first
    messages = f"{count} message{'s are' if count > 1 else ' is'} missing"
    detail = f"{messages}, and no gap is declared there"
    return Finding("missing", shown(first, end), detail, first, end)


@dataclass(slots=True)
class Report:
    """Findings of a run: of queues in their reports, of nodes, groups and brokers in
    `others`.

    `complete` is False if it was stopped; `unchecked`: nodes that could not be looked at,
    {name: why}.
    """

    queues: list[QueueReport] = field(default_factory=list)
    others: list[Finding] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (
            *(finding for queue in self.queues for finding in queue.findings),
            *self.others,
        )

    @property
    def unseen(self) -> list[QueueReport]:
        return [queue for queue in self.queues if queue.unseen is not None]
