"""Kinds of disagreement between metadata and nodes, what each means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of finding; `repair` says what the repair does where it is safe, '' where there is none."""

    means: str
    advice: str
    repair: str = ""


KINDS = {
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
    "head_missing": Kind(
        "A queue has a table and no head row: nothing can be sent to it or read from it.",
        "Run manage.py verify for the topic; restore the row of queue_head from a replica or a backup.",
    ),
    "head_behind": Kind(
        "A queue's head is lower than it was: its node lost the latest messages, or is an older copy.",
        "Run manage.py verify for the topic. If a backup was restored: manage.py adopt_restored_node. "
        "If there is a replica: manage.py promote_node.",
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
    "position_missing": Kind(
        "Metadata does not know that a group reads some queues: no member gets them, and they are not read.",
        "Repair it; the positions themselves are on the nodes.",
        "Adds the rows and shares the group's queues anew. Reading goes on at the positions of the nodes.",
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that disagrees: where, and what it is, in figures. `safe`: the repair may be done.

    `node`, `group` and `topic` are ids, 0 where it is about none; `ids` are queues, or members.
    """

    kind: str
    where: str
    what: str
    safe: bool = False
    node: int = 0
    group: int = 0
    topic: int = 0
    ids: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Key that tells it from others, also in a later check: its kind, and what it is about."""
        about = (self.node, self.group, self.topic, self.ids[0] if self.kind in ONE_QUEUE else 0)
        return "-".join([self.kind, *map(str, about)])

    @property
    def means(self) -> str:
        """Consequence of the finding."""
        return KINDS[self.kind].means

    @property
    def advice(self) -> str:
        """Remedy for it: the repair if it is safe."""
        return KINDS[self.kind].repair if self.safe else KINDS[self.kind].advice


ONE_QUEUE = ("table_missing", "table_unknown", "head_missing", "head_behind", "head_unknown")
