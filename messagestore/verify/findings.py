"""Kinds of faults of a queue, what each means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of finding."""

    means: str
    advice: str


_NO_SENDS = "Set its node read_only, so that nothing is stored meanwhile."
_BY_HAND = "Find out who wrote to the node's tables: no broker does this."

KINDS = {
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
        "The head is lower than it was a moment ago: the node lost its latest writes, and their offsets "
        "will be given to other messages.",
        "Was the database killed, restored or replaced? Take the node offline before more is stored.",
    ),
    "head_missing": Kind("Nothing can be sent to the queue or read from it.", _BY_HAND),
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
        "Metadata does not know that the group reads the queue: no member gets it, and it is not read.",
        "Restore metadata, or subscribe anew (catmq unsubscribe, catmq subscribe), which forgets positions.",
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: where (`offsets 5 … 9`, `group billing`), and what it is, in figures.

    `first` and `end` are the offsets concerned, where there are any.
    """

    kind: str
    where: str
    what: str
    first: int | None = None
    end: int | None = None

    @property
    def means(self) -> str:
        """Consequence of the finding."""
        return KINDS[self.kind].means

    @property
    def advice(self) -> str:
        """Remedy for it."""
        return KINDS[self.kind].advice
