"""Failover of a node: the metadata that a promotion or a restore of its database needs, and
the changes to the node's row.

`begin` takes the node offline under a new epoch. `finish` puts it back into service, maybe
at another address. After a crash in between the node stays offline, and the same command
can be run again.

The messages that a replica or backup lacks are found by comparison with the log end offsets
and commits that metadata has recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.changes import record_change
from metadata.db.consumer_ids import reader_instance
from metadata.db.rows import lock_node
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, NotFound
from metadata.grouping import chunks
from metadata.groups import commits
from metadata.membership import broadcast_instances
from metadata.models import ChangeCounter, DbNode, Queue, QueueOffset
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import GroupMode
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import QueueState, TopicState

_BATCH = 500  # rows in a transaction


class OfflineNode(Struct, frozen=True):
    """A node that begin() took offline. Once all brokers have followed metadata to `change`,
    none writes to its old address any more.
    """

    node_id: int
    epoch: int
    change: int
    state_before: str


class NodeQueue(Struct, frozen=True):
    """A queue of a node. `highest` is the highest recorded log end offset."""

    queue: int
    topic_id: int
    topic: str
    state: str
    highest: int


class DelayedCounts(Struct, frozen=True):
    """Counts of a node's delayed messages under an epoch: `given` ids were assigned so far,
    `waiting` messages were not due.
    """

    epoch: int
    given: int
    waiting: int

    def lost(self, *, given: int) -> int:
        """Return the maximum number of waiting messages that were lost, if a restored
        database has assigned only `given` ids.

        Messages that were delivered to their queues meanwhile are counted there.

        >>> counts = DelayedCounts(1, given=91, waiting=50)
        >>> tuple(counts.lost(given=given) for given in (10, 60, 91, 95))
        (50, 31, 0, 0)
        """
        return max(0, min(self.waiting, self.given - given))


class ReaderEpoch(Struct, frozen=True):
    """The minimum epoch of a reader of a queue. `reader` is the name of the instance in the
    node's reader rows.

    `committed` is the offset that the group had committed at `as_of_ms` (by the node's
    clock), in a broadcasting group that of its slowest instance. `as_of_ms` is None if it
    was never read.
    """

    group_id: int
    group: str
    reader: str
    instance: str
    queue: int
    epoch: int
    committed: int
    as_of_ms: int | None


def begin(*, name: str, verb: str, actor: Actor) -> OfflineNode:
    """Take a node offline under a new epoch. Needs `admin`. Raises NotFound
    (node_not_found).
    """
    begun = _begin(name=name, verb=verb, actor=actor)
    # The number of the change is assigned at the commit. A later number serves as well.
    with reachable():
        last = ChangeCounter.objects.values_list("n", flat=True).get()
    return structs.replace(begun, change=int(last))


@transactional
def _begin(*, name: str, verb: str, actor: Actor) -> OfflineNode:
    access.require_everything(actor, name, what="node")
    row = lock_node(name)
    # A run of the command that has begun before has a lower epoch, so its finish() fails.
    before = {"state": row.state, "epoch": row.epoch}
    row.state, row.epoch = NodeState.OFFLINE, row.epoch + 1
    row.save(update_fields=("state", "epoch"))
    after = {"state": row.state, "epoch": row.epoch}
    audit.record(
        actor=actor,
        verb=f"begin_{verb}",
        kind="node",
        name=name,
        before=before,
        after=after,
    )
    record_change("node", row.pk)
    return OfflineNode(row.pk, row.epoch, 0, str(before["state"]))


@transactional
def finish(
    *,
    begun: OfflineNode,
    verb: str,
    address: Mapping[str, object],
    identity: str,
    heads: Mapping[int, int],
    delayed: tuple[int, int],
    report: Mapping[str, object],
    actor: Actor,
) -> str:
    """Put a node back into service. Return its state: read-only if it was before the
    failover, else read-write.

    `address` has the columns that change. `heads` are the log end offsets of its queues,
    `delayed` the number of ids assigned to delayed messages and of those that wait.
    `report` is for the audit log. Raises NotFound if another run of the command came first.
    """
    # The epoch is the fence: another begin() has raised it.
    row = (
        DbNode.objects.select_for_update()
        .filter(pk=begun.node_id, epoch=begun.epoch)
        .first()
    )
    if row is None:
        raise NotFound(
            "Another user promoted or adopted the node meanwhile.", code=Code.NODE_NOT_FOUND
        )
    access.require_everything(actor, row.name, what="node")
    was_read_only = begun.state_before == NodeState.READ_ONLY
    before = {key: getattr(row, key) for key in address}
    values = {**address, "identity": identity, "quarantined": ""}
    values["delayed_given"], values["delayed_waiting"] = delayed
    values["state"] = NodeState.READ_ONLY if was_read_only else NodeState.READ_WRITE
    for key, value in values.items():
        setattr(row, key, value)
    row.save(update_fields=tuple(values))
    # `head_seen` falls nowhere else. Messages from `head` on are lost.
    for queue, head in heads.items():
        Queue.objects.filter(pk=queue).update(head_read=head, head_seen=head)
    after = {**address, "state": row.state, "epoch": row.epoch, **report}
    audit.record(
        actor=actor, verb=verb, kind="node", name=row.name, before=before, after=after
    )
    topics = set(Queue.objects.filter(node=row.pk).values_list("topic_id", flat=True))
    if topics:
        record_change("topic", *topics)
    record_change("node", row.pk)
    return str(row.state)


def list_queues(node_id: int) -> list[NodeQueue]:
    """Return the queues of a node that must exist in its database, by rising id."""
    rows = Queue.objects.filter(node=node_id).exclude(state=QueueState.CREATING)
    rows = rows.exclude(topic__state=TopicState.DELETED).order_by("pk")
    columns = rows.values_list(
        "pk", "topic_id", "topic__name", "state", "head_read", "head_seen"
    )
    with reachable():
        return [NodeQueue(*row[:4], highest=max(row[4], row[5])) for row in columns]


def list_readers(node_id: int) -> list[ReaderEpoch]:
    """Return every reader of the queues of a node, with its minimum epoch."""
    readers: list[ReaderEpoch] = []
    with reachable():
        offsets = QueueOffset.objects.filter(queue__node=node_id).order_by("queue_id")
        rows = list(offsets.select_related("group", "queue"))
        looks = commits.latest_positions((row.queue.topic_id, row.group_id) for row in rows)
        for row in rows:
            look = looks[row.queue.topic_id, row.group_id].get(row.queue_id)
            position = (look.committed, look.told_ms) if look else (0, None)
            group_instances = (
                broadcast_instances.list_instances(row.group_id)
                if row.group.mode == GroupMode.BROADCASTING
                else {0: ("", 0)}
            )
            for pk, (name, epoch) in group_instances.items():
                reader = reader_instance(pk), name, row.queue_id, row.epoch + epoch
                readers.append(
                    ReaderEpoch(row.group_id, row.group.name, *reader, *position)
                )
    return readers


@transactional
def quarantine(*, node_id: int, epoch: int, why: str, actor: Actor) -> bool:
    """Keep all brokers from serving a node until it gets another epoch. Return False if it
    has another epoch, or is in quarantine already.
    """
    # Another epoch means that a failover came first, so the reason may be out of date.
    row = (
        DbNode.objects.select_for_update()
        .filter(pk=node_id, epoch=epoch, quarantined="")
        .first()
    )
    if row is None:
        return False
    row.quarantined = why[:500]
    row.save(update_fields=("quarantined",))
    after = {"quarantined": row.quarantined}
    audit.record(actor=actor, verb=Verb.QUARANTINE, kind="node", name=row.name, after=after)
    record_change("node", row.pk)
    return True


@transactional
def note_writer(*, node_id: int, epoch: int, writer: str, actor: Actor) -> str | None:
    """Record the server that a node on several servers is written to.

    Return the former one, '' if none was recorded; None if nothing changed, because another
    process recorded it before, or the node has another epoch.
    """
    row = (
        DbNode.objects.select_for_update()
        .filter(pk=node_id, epoch=epoch)
        .exclude(writer=writer)
        .first()
    )
    if row is None:
        return None
    former = str(row.writer)
    row.writer = writer
    row.save(update_fields=("writer",))
    before, after = {"writer": former}, {"writer": writer}
    audit.record(
        actor=actor,
        verb=Verb.FOLLOW,
        kind="node",
        name=row.name,
        before=before,
        after=after,
    )
    record_change("node", row.pk)
    return former


def record_heads(heads: Sequence[tuple[int, int]]) -> int:
    """Record log end offsets as just read, in pairs (queue, head). Return how many rows
    changed. An idle queue costs no write.

    An offset that was read twice in a row becomes `head_seen`: it is durable on the node.
    """
    return sum(_record_heads(dict(batch)) for batch in chunks(heads, _BATCH))


def read_delayed_counts(node_id: int) -> DelayedCounts:
    """Return the counts of a node's delayed messages as a job last read them."""
    with reachable():
        row = DbNode.objects.values_list("epoch", "delayed_given", "delayed_waiting").get(
            pk=node_id
        )
    return DelayedCounts(*row)


@transactional
def record_delayed(counts_by_node: Mapping[int, DelayedCounts]) -> None:
    """Record the counts of delayed messages, by node id.

    Counts of a database that was set back are ignored: `delayed_given` never falls.
    """
    # Sorted, so that two processes lock rows in the same order.
    for node_id, delayed in sorted(counts_by_node.items()):
        counts = {"delayed_given": delayed.given, "delayed_waiting": delayed.waiting}
        rows = DbNode.objects.filter(
            pk=node_id, epoch=delayed.epoch, delayed_given__lte=delayed.given
        )
        rows.exclude(**counts).update(**counts)


@transactional
def record_seen_heads(heads: Mapping[int, int]) -> None:
    """Record log end offsets that a broker has seen on a node that went out of service. A
    recorded offset never falls.
    """
    # Sorted, as several brokers see a node fail at once and lock the same rows.
    for queue, head in sorted(heads.items()):
        Queue.objects.filter(pk=queue, head_read__lt=head).update(head_read=head)


@transactional
def _record_heads(heads: Mapping[int, int]) -> int:
    changes = []
    for row in Queue.objects.filter(pk__in=sorted(heads)).only("head_read", "head_seen"):
        head = heads[row.pk]
        # No crash can undo an offset that was read before and is still there.
        certain = max(row.head_seen, min(row.head_read, head))
        if (row.head_read, row.head_seen) != (head, certain):
            row.head_read, row.head_seen = head, certain
            changes.append(row)
    Queue.objects.bulk_update(changes, ("head_read", "head_seen"))
    return len(changes)
