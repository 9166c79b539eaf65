"""Comparison of metadata and nodes with the mark of a backup: effects of a restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from messagestore.engine import db_errors
from messagestore.nodes.backup_marks import Mark, MarkedNode, MarkedReader
from messagestore.pool import session_pool
from messagestore.tables import delayed_sql, promotion_sql
from messagestore.tables.promotion_sql import HighestIds, NodeMark
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access
from metadata.errors import NodeUnavailable
from metadata.installation import name_programs
from metadata.nodes import failovers, id_rows

MARGIN = 1_000  # ids that may have been assigned after the mark
# States of a node, from good to bad. Those from BAD on need an operator; `unreachable` may
# pass by itself.
STATES = (
    "equal",
    "ahead",
    "declared",
    "unmarked",
    "unreachable",
    "behind",
    "epoch",
    "unknown",
    "empty",
    "other",
)
BAD = STATES.index("behind")


class QueueCheck(Struct, frozen=True):
    """A queue whose end differs from before.

    `known` is its highest end by mark and metadata, `found` its present end. `lost`
    messages are missing at its end; `declared` of them are in a declared gap already.
    """

    queue: int
    topic: str
    known: int
    found: int
    lost: int
    declared: int


class GroupCheck(Struct, frozen=True):
    """A group that gets `lost_tail` in a queue.

    `unread`: lost messages that it had not read, as far as is known. `again`: messages it
    had committed and gets a second time.
    """

    group: str
    topic: str
    queue: int
    unread: int
    again: int


class NodeCheck(Struct, frozen=True):
    """A node with its state (see STATES) and a reason.

    `delayed`: delayed messages (also those for a retry) that are lost, at most.
    """

    name: str
    state: str
    why: str
    queues: tuple[QueueCheck, ...] = ()
    groups: tuple[GroupCheck, ...] = ()
    delayed: int = 0

    @property
    def lost(self) -> int:
        return sum(queue.lost for queue in self.queues)

    @property
    def advice(self) -> str:
        return name_programs(_ADVICE[self.state].format(self.name))


_ADVICE = {
    "equal": "",
    "ahead": "",
    "declared": "Run manage.py verify --all.",
    "unmarked": "",
    "unreachable": "Start the node's server, then repeat this.",
    "behind": "Run manage.py adopt_restored_node {0}, then manage.py verify --all.",
    "epoch": "Run manage.py adopt_restored_node {0}: brokers may not write to it before.",
    "unknown": (
        "Restore a newer backup of metadata. If there is none, register its database under "
        "a new name: "
        "its messages are then lost."
    ),
    "empty": "Restore its backup. To go on without one, run manage.py adopt_restored_node {0}.",
    "other": "Correct what is at the node's address, then repeat this.",
}


class MetadataCheck(Struct, frozen=True):
    """Metadata compared with the mark and with the nodes.

    `state`: equal, ahead, behind or other. `ids`: the ids up to which none may be assigned
    again; empty if none is in danger.
    """

    state: str
    changes: int
    marked: int
    ids: Mapping[str, int]


class RestoreCheck(Struct, frozen=True):
    metadata: MetadataCheck
    nodes: tuple[NodeCheck, ...]

    @property
    def passed(self) -> bool:
        has_bad_node = any(STATES.index(node.state) >= BAD for node in self.nodes)
        return not has_bad_node and self.metadata.state != "other" and not self.metadata.ids

    @property
    def complete(self) -> bool:
        return all(node.state != "unreachable" for node in self.nodes)


def check(mark: Mark, *, actor: Actor) -> RestoreCheck:
    """Compare metadata and every node with a mark, without changes. Needs `admin`."""
    access.require_everything(actor, "all", what="node")
    snapshot.refresh()
    now = id_rows.read_counters()
    infos = {info.name: info for info in snapshot.current().nodes.values()}
    node_checks: list[NodeCheck] = []
    highest: list[HighestIds] = []
    for name, info in sorted(infos.items()):
        node_check, highest_ids = _check_node(info, mark.node(name))
        node_checks.append(node_check)
        highest += [highest_ids] if highest_ids is not None else []
    reason = "metadata does not know it: it was registered after the backup of metadata"
    node_checks += [
        NodeCheck(node.name, "unknown", reason)
        for node in mark.nodes
        if node.name not in infos
    ]
    state = "ahead" if now.changes > mark.metadata.changes else "equal"
    # Another incarnation is another installation: its counters mean nothing here.
    if now.incarnation != mark.metadata.incarnation:
        state = "other"
    elif now.changes < mark.metadata.changes:
        state = "behind"
    used_ids = {
        kind: max(
            mark.metadata.ids.get(kind, 0), *(getattr(ids, kind) for ids in highest), 0
        )
        for kind in now.ids
    }
    is_endangered = any(used_ids[kind] > now.ids[kind] for kind in now.ids)
    # Higher than anything that metadata, mark or nodes know, and a margin for ids after the
    # mark.
    raised_ids = {kind: max(used_ids[kind], now.ids[kind]) + MARGIN for kind in now.ids}
    metadata_check = MetadataCheck(
        state, now.changes, mark.metadata.changes, raised_ids if is_endangered else {}
    )
    return RestoreCheck(metadata_check, tuple(node_checks))


def raise_ids(checked: RestoreCheck, *, actor: Actor) -> None:
    """Raise metadata's id counters above all ids that nodes hold data of. Needs `admin`."""
    if checked.metadata.ids:
        id_rows.raise_ids(ids=checked.metadata.ids, actor=actor)


def _check_node(
    info: NodeInfo, marked: MarkedNode | None
) -> tuple[NodeCheck, HighestIds | None]:
    """Compare a node with its mark; also return the highest ids in its tables."""
    try:
        with session_pool.direct(info) as session:
            try:
                node_mark, identity = (
                    promotion_sql.read_mark(session),
                    promotion_sql.read_identity(session),
                )
                last_delayed_id = delayed_sql.read_counts(session).given
            except db_errors.Final:
                return NodeCheck(
                    info.name, "empty", "its database has no tables of a node"
                ), None
    except NodeUnavailable as error:
        return NodeCheck(info.name, "unreachable", error.detail), None
    if info.identity and identity != info.identity:
        state = "other" if identity or node_mark.heads else "empty"
        return NodeCheck(
            info.name, state, "its database has the data of another node, or none"
        ), None
    queues = _compare_queues(info, marked, node_mark)
    losing_queues = {queue.queue: queue for queue in queues if queue.lost}
    groups = _compare_groups(info, marked, node_mark, losing_queues)
    delayed = failovers.read_delayed_counts(info.id).lost(given=last_delayed_id)
    state, why = _judge_node(info, marked, node_mark, queues, delayed=delayed)
    return (
        NodeCheck(info.name, state, why, tuple(queues), tuple(groups), delayed),
        node_mark.highest,
    )


def _judge_node(
    info: NodeInfo,
    marked: MarkedNode | None,
    node_mark: NodeMark,
    queues: Sequence[QueueCheck],
    *,
    delayed: int,
) -> tuple[str, str]:
    """Return the state of a node and the reason, the most serious one first."""
    if any(queue.lost > queue.declared for queue in queues):
        lost = sum(queue.lost - queue.declared for queue in queues)
        return "behind", f"at least {lost} messages are lost"
    if delayed:
        return "behind", f"up to {delayed} messages that waited for their time are lost"
    # Losses matter more than a wrong epoch: adopting the node corrects both.
    epochs = {epoch for *_, epoch in node_mark.heads}
    if epochs - {info.epoch} and node_mark.heads:
        return (
            "epoch",
            f"its queues have node epoch {max(epochs)}, metadata has {info.epoch}",
        )
    if any(queue.declared for queue in queues):
        return "declared", "what was lost is declared as gaps"
    if marked is None:
        return "unmarked", "the mark does not have it"
    return ("ahead", "") if queues else ("equal", "")


def _compare_queues(
    info: NodeInfo, marked: MarkedNode | None, node_mark: NodeMark
) -> list[QueueCheck]:
    """Return queues whose end differs from mark or metadata, or that lack messages."""
    heads = {queue: head for queue, head, *_ in node_mark.heads}
    marked_queues = {row.queue: row for row in marked.queues} if marked else {}
    recorded = {row.queue: row for row in failovers.list_queues(info.id)}
    # Gaps in the mark are older than the restore, so their messages were not lost by it.
    old_gaps = set(marked.gaps) if marked else set()
    checks = []
    for queue in sorted(heads.keys() | marked_queues.keys() | recorded.keys()):
        marked_head = marked_queues[queue].head if queue in marked_queues else 0
        end = max(marked_head, recorded[queue].highest if queue in recorded else 0)
        if queue not in recorded and queue not in heads:
            continue  # deleted since
        topic = (
            recorded[queue].topic
            if queue in recorded
            else marked_queues[queue].topic
            if queue in marked_queues
            else ""
        )
        head = heads.get(queue, 0)
        declared = sum(
            max(0, min(last, marked_head) - first)
            for gap_queue, first, last in node_mark.gaps
            if gap_queue == queue and (gap_queue, first, last) not in old_gaps
        )
        lost = max(0, end - head) + declared
        if lost or head != marked_head:
            checks.append(QueueCheck(queue, topic, end, head, lost, declared))
    return checks


def _compare_groups(
    info: NodeInfo,
    marked: MarkedNode | None,
    node_mark: NodeMark,
    losing_queues: Mapping[int, QueueCheck],
) -> list[GroupCheck]:
    committed_now = {
        (group, instance, queue): committed
        for group, instance, queue, _, committed in node_mark.readers
    }
    # Mark and metadata have positions that the restored node has forgotten.
    highest_committed = {
        (reader.group_id, reader.reader, reader.queue): reader.committed
        for reader in failovers.list_readers(info.id)
    }
    readers: Sequence[MarkedReader] = marked.readers if marked else ()
    for reader in readers:
        position_key = reader.group_id, reader.instance, reader.queue
        earlier = highest_committed.get(position_key, 0)
        highest_committed[position_key] = max(earlier, reader.committed)
    names = id_rows.group_names()
    checks = []
    for key in sorted(
        {*committed_now, *highest_committed},
        key=lambda reader: (reader[2], reader[0], reader[1]),
    ):
        group, instance, queue = key
        queue_check = losing_queues.get(queue)
        if queue_check is None:
            continue
        position = max(highest_committed.get(key, 0), committed_now.get(key, 0))
        lost_from = queue_check.known - queue_check.lost  # the first lost offset
        unread = queue_check.known - max(lost_from, min(position, queue_check.known))
        # The restored node has an older position, so the group reads from there again.
        again = max(0, min(position, lost_from) - committed_now.get(key, 0))
        name = names.get(group, f"group {group}")
        checks.append(
            GroupCheck(
                f"{name}/{instance}" if instance else name,
                queue_check.topic,
                queue,
                unread,
                again,
            )
        )
    return checks
