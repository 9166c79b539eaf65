"""Facts and decisions of metadata about a lost node: how far its heads were, who owned
what, where it is.

`begin` takes the node out of use under a new epoch; `finish` puts it back, perhaps at
another address. A crash in between leaves it offline, and the same command begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from metadata.models import ChangeCounter, DbNode, Queue, QueueOffset, Topic

_TOGETHER = 500  # rows in one transaction


@dataclass(frozen=True, slots=True)
class OfflineNode:
    """A node that was taken out of use; `change` is the one that brokers must have
    followed.
    """

    node_id: int
    epoch: int
    change: int
    state_before: str


@dataclass(frozen=True, slots=True)
class NodeQueue:
    """A queue of a node with the highest head that metadata knows of."""

    queue: int
    topic_id: int
    topic: str
    state: str
    highest: int


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """How many ids of delayed messages a node had given under an epoch, and how many
    messages waited then.
    """

    epoch: int
    given: int
    waiting: int

    def lost(self, *, given: int) -> int:
        """Return how many messages that waited are missing, at most, if only `given` ids
        are known now.

        Of the ids that were given since, some belong to messages that were delivered
        meanwhile. Those are counted with the ends of queues.

        >>> seen = DelayedSeen(1, given=91, waiting=50)
        >>> seen.lost(given=10), seen.lost(given=60), seen.lost(given=91), seen.lost(given=95)
        (50, 31, 0, 0)
        """
        return max(0, min(self.waiting, self.given - given))


@dataclass(frozen=True, slots=True)
class ReaderEpoch:
    """The epoch that a reader of a queue has at least; `reader` is how the node names an
    instance.

    `committed` is how far its group was when the job that records lag looked, at `as_of_ms`
    by the node's clock: of a broadcasting group its slowest instance. None: nobody has
    looked.
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
    """Take a node offline under a new epoch. Needs `admin`; raises NotFound
    (node_not_found).
    """
    begun = _begin(name=name, verb=verb, actor=actor)
    with reachable():  # the number is given at the commit; a later one will do as well
        last = ChangeCounter.objects.values_list("n", flat=True).get()
    return replace(begun, change=int(last))


@transactional
def _begin(*, name: str, verb: str, actor: Actor) -> OfflineNode:
    access.require_everything(actor, name, what="node")
    row = lock_node(name)
    before = {"state": row.state, "epoch": row.epoch}
    row.state, row.epoch = DbNode.State.OFFLINE, row.epoch + 1
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
    """Put a node back into use; its state. `address` holds the columns that change;
    `report` is for the log.

    `delayed`: ids that were given to delayed messages, and how many messages wait. A node
    that was read-only stays so. Raises NotFound when another run of the command came first.
    """
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
    closed = begun.state_before == DbNode.State.READ_ONLY
    before = {key: getattr(row, key) for key in address}
    values = {**address, "identity": identity, "quarantined": ""}
    values["delayed_given"], values["delayed_waiting"] = delayed
    values["state"] = DbNode.State.READ_ONLY if closed else DbNode.State.READ_WRITE
    for key, value in values.items():
        setattr(row, key, value)
    row.save(update_fields=tuple(values))
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
    """The queues of a node whose messages must be there, rising."""
    rows = Queue.objects.filter(node=node_id).exclude(state=Queue.State.CREATING)
    rows = rows.exclude(topic__state=Topic.State.DELETED).order_by("pk")
    columns = rows.values_list(
        "pk", "topic_id", "topic__name", "state", "head_read", "head_seen"
    )
    with reachable():
        return [NodeQueue(*row[:4], highest=max(row[4], row[5])) for row in columns]


def list_readers(node_id: int) -> list[ReaderEpoch]:
    """Every reader of a queue of a node, with the least epoch it can have."""
    found: list[ReaderEpoch] = []
    with reachable():
        of_node = QueueOffset.objects.filter(queue__node=node_id).order_by("queue_id")
        rows = list(of_node.select_related("group", "queue"))
        looks = commits.latest_positions((row.queue.topic_id, row.group_id) for row in rows)
        for row in rows:
            look = looks[row.queue.topic_id, row.group_id].get(row.queue_id)
            seen = (look.committed, look.told_ms) if look else (0, None)
            known = (
                broadcast_instances.list_instances(row.group_id)
                if row.group.mode == "broadcasting"
                else {0: ("", 0)}
            )
            for pk, (name, epoch) in known.items():
                reader = reader_instance(pk), name, row.queue_id, row.epoch + epoch
                found.append(ReaderEpoch(row.group_id, row.group.name, *reader, *seen))
    return found


@transactional
def quarantine(*, node_id: int, epoch: int, why: str, actor: Actor) -> bool:
    """Keep every broker from serving a node until it gets another epoch; whether that is
    news.
    """
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
    audit.record(actor=actor, verb="quarantine", kind="node", name=row.name, after=after)
    record_change("node", row.pk)
    return True


def record_heads(heads: Sequence[tuple[int, int]]) -> int:
    """Keep (queue, head)s as they were read; return how many rows changed. An idle queue
    costs no write.

    What was read last time and is still there counts as seen: no crash can take it back.
    """
    return sum(_record(dict(some)) for some in chunks(heads, _TOGETHER))


def read_delayed_counts(node_id: int) -> DelayedCounts:
    """Return the delayed messages of a node as a job read them last."""
    with reachable():
        row = DbNode.objects.values_list("epoch", "delayed_given", "delayed_waiting").get(
            pk=node_id
        )
    return DelayedCounts(*row)


@transactional
def record_delayed(seen: Mapping[int, DelayedCounts]) -> None:
    """Keep how many delayed messages nodes have, {node id: counts}.

    What a database says that was set back counts for nothing: the number of ids never falls
    by it.
    """
    for node_id, delayed in sorted(seen.items()):
        counts = {"delayed_given": delayed.given, "delayed_waiting": delayed.waiting}
        rows = DbNode.objects.filter(
            pk=node_id, epoch=delayed.epoch, delayed_given__lte=delayed.given
        )
        rows.exclude(**counts).update(**counts)


@transactional
def record_seen_heads(heads: Mapping[int, int]) -> None:
    """Keep how far a broker has seen the queues of a node that went out of use; nothing
    falls by it.
    """
    for queue, head in sorted(heads.items()):
        Queue.objects.filter(pk=queue, head_read__lt=head).update(head_read=head)


@transactional
def _record(heads: Mapping[int, int]) -> int:
    changes = []
    for row in Queue.objects.filter(pk__in=sorted(heads)).only("head_read", "head_seen"):
        head = heads[row.pk]
        certain = max(row.head_seen, min(row.head_read, head))
        if (row.head_read, row.head_seen) != (head, certain):
            row.head_read, row.head_seen = head, certain
            changes.append(row)
    Queue.objects.bulk_update(changes, ("head_read", "head_seen"))
    return len(changes)
