"""Comparison of every node and metadata with the mark of a backup: what a restore brought
back or lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from metadata.nodes import failovers, id_rows
from metadata.nodes.id_rows import Counters

MARGIN = 1_000  # ids that may have been given after the mark
# States of a node, from good to bad; those from BAD on need somebody, `unreachable` may
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


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """A queue whose end is not what it was: `known` is the highest end of mark and
    metadata.

    `lost` messages are missing at its end; `declared` of them lie in a gap already.
    """

    queue: int
    topic: str
    known: int
    found: int
    lost: int
    declared: int


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """A group that gets `lost_tail` in a queue: it had not read `unread` of what is lost,
    as far as is known, and gets `again` messages a second time, which it had committed
    before."""

    group: str
    topic: str
    queue: int
    unread: int
    again: int


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A node with its state (see STATES), a reason where there is one, and what is to be
    done.

    `delayed`: messages that waited for their time, delayed or for a retry, and are missing,
    at most.
    """

    name: str
    state: str
    why: str
    queues: tuple[QueueCheck, ...] = ()
    groups: tuple[GroupCheck, ...] = ()
    delayed: int = 0

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.queues)

    @property
    def advice(self) -> str:
        return _ADVICE[self.state].format(self.name)


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


@dataclass(frozen=True, slots=True)
class MetadataCheck:
    """Metadata compared with the mark and with the nodes. `state`: equal, ahead, behind or
    other.

    `ids`: those up to which no id may be given again; empty if none is in danger.
    """

    state: str
    changes: int
    marked: int
    ids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RestoreCheck:
    """Result of a comparison."""

    metadata: MetadataCheck
    nodes: tuple[NodeCheck, ...]

    @property
    def passed(self) -> bool:
        bad = any(STATES.index(one.state) >= BAD for one in self.nodes)
        return not bad and self.metadata.state != "other" and not self.metadata.ids

    @property
    def complete(self) -> bool:
        return all(one.state != "unreachable" for one in self.nodes)


def check(mark: Mark, *, actor: Actor) -> RestoreCheck:
    """Compare metadata and every node with a mark; nothing is changed. Needs `admin`."""
    access.require_everything(actor, "all", what="node")
    snapshot.refresh()
    now = id_rows.read_counters()
    infos = {info.name: info for info in snapshot.current().nodes.values()}
    found: list[NodeCheck] = []
    highest: list[HighestIds] = []
    for name, info in sorted(infos.items()):
        checked, ids = _look(info, mark.node(name))
        found.append(checked)
        highest += [ids] if ids is not None else []
    why = "metadata does not know it: it was registered after the backup of metadata"
    found += [
        NodeCheck(one.name, "unknown", why) for one in mark.nodes if one.name not in infos
    ]
    return RestoreCheck(_metadata(mark, now, highest), tuple(found))


def raise_ids(checked: RestoreCheck, *, actor: Actor) -> None:
    """Give no id of metadata again that nodes hold something of. Needs `admin`."""
    if checked.metadata.ids:
        id_rows.raise_ids(ids=checked.metadata.ids, actor=actor)


def _look(info: NodeInfo, marked: MarkedNode | None) -> tuple[NodeCheck, HighestIds | None]:
    try:
        with session_pool.direct(info) as session:
            try:
                found, identity = (
                    promotion_sql.read_mark(session),
                    promotion_sql.read_identity(session),
                )
                given = delayed_sql.read_counts(session).given
            except db_errors.Final:
                return NodeCheck(
                    info.name, "empty", "its database has no tables of a node"
                ), None
    except NodeUnavailable as error:
        return NodeCheck(info.name, "unreachable", error.detail), None
    if info.identity and identity != info.identity:
        state = "other" if identity or found.heads else "empty"
        return NodeCheck(
            info.name, state, "its database has the data of another node, or none"
        ), None
    return _compared(info, marked, found, given), found.highest


def _compared(
    info: NodeInfo, marked: MarkedNode | None, found: NodeMark, given: int
) -> NodeCheck:
    queues = _queues(info, marked, found)
    losing = {one.queue: one for one in queues if one.lost}
    groups = _groups(info, marked, found, losing)
    delayed = failovers.read_delayed_counts(info.id).lost(given=given)
    state, why = _state(info, marked, found, queues, delayed=delayed)
    return NodeCheck(info.name, state, why, tuple(queues), tuple(groups), delayed)


def _state(
    info: NodeInfo,
    marked: MarkedNode | None,
    found: NodeMark,
    queues: Sequence[QueueCheck],
    *,
    delayed: int,
) -> tuple[str, str]:
    if any(one.lost > one.declared for one in queues):
        lost = sum(one.lost - one.declared for one in queues)
        return "behind", f"at least {lost} messages are lost"
    if delayed:
        return "behind", f"up to {delayed} messages that waited for their time are lost"
    epochs = {epoch for *_, epoch in found.heads}
    if epochs - {info.epoch} and found.heads:
        return (
            "epoch",
            f"its queues have node epoch {max(epochs)}, metadata has {info.epoch}",
        )
    if any(one.declared for one in queues):
        return "declared", "what was lost is declared as gaps"
    if marked is None:
        return "unmarked", "the mark does not have it"
    return ("ahead", "") if queues else ("equal", "")


def _queues(info: NodeInfo, marked: MarkedNode | None, found: NodeMark) -> list[QueueCheck]:
    """Return the queues whose ends differ from the mark or from metadata, and those that
    miss messages.
    """
    now = {queue: head for queue, head, *_ in found.heads}
    before = {one.queue: one for one in marked.queues} if marked else {}
    known = {one.queue: one for one in failovers.list_queues(info.id)}
    old_gaps = set(marked.gaps) if marked else set()
    checked = []
    for queue in sorted(now.keys() | before.keys() | known.keys()):
        was = before[queue].head if queue in before else 0
        end = max(was, known[queue].highest if queue in known else 0)
        if queue not in known and queue not in now:
            continue  # deleted since
        topic = (
            known[queue].topic
            if queue in known
            else before[queue].topic
            if queue in before
            else ""
        )
        head = now.get(queue, 0)
        declared = sum(
            max(0, min(last, was) - first)
            for of, first, last in found.gaps
            if of == queue and (of, first, last) not in old_gaps
        )
        lost = max(0, end - head) + declared
        if lost or head != was:
            checked.append(QueueCheck(queue, topic, end, head, lost, declared))
    return checked


def _groups(
    info: NodeInfo,
    marked: MarkedNode | None,
    found: NodeMark,
    losing: Mapping[int, QueueCheck],
) -> list[GroupCheck]:
    """The groups that read queues with losses: the mark and metadata say how far they were
    at least.
    """
    now = {
        (group, instance, queue): committed
        for group, instance, queue, _, committed in found.readers
    }
    names, before = id_rows.group_names(), _positions(info, marked)
    checked = []
    for key in sorted({*now, *before}, key=lambda one: (one[2], one[0], one[1])):
        group, instance, queue = key
        at = losing.get(queue)
        if at is None:
            continue
        position = max(before.get(key, 0), now.get(key, 0))
        last = at.known - at.lost  # the first offset that is missing
        unread = at.known - max(last, min(position, at.known))
        again = max(0, min(position, last) - now.get(key, 0))
        name = names.get(group, f"group {group}")
        checked.append(
            GroupCheck(
                f"{name}/{instance}" if instance else name, at.topic, queue, unread, again
            )
        )
    return checked


def _positions(
    info: NodeInfo, marked: MarkedNode | None
) -> dict[tuple[int, str, int], int]:
    """{(group id, instance, queue): the highest committed offset that mark or metadata
    know}.
    """
    known = {
        (one.group_id, one.reader, one.queue): one.committed
        for one in failovers.list_readers(info.id)
    }
    readers: Sequence[MarkedReader] = marked.readers if marked else ()
    for one in readers:
        key = one.group_id, one.instance, one.queue
        known[key] = max(known.get(key, 0), one.committed)
    return known


def _metadata(mark: Mark, now: Counters, found: Sequence[HighestIds]) -> MetadataCheck:
    state = "ahead" if now.changes > mark.metadata.changes else "equal"
    if now.incarnation != mark.metadata.incarnation:
        state = "other"
    elif now.changes < mark.metadata.changes:
        state = "behind"
    held = {kind: max((getattr(one, kind) for one in found), default=0) for kind in now.ids}
    used = {kind: max(held[kind], mark.metadata.ids.get(kind, 0)) for kind in now.ids}
    endangered = any(used[kind] > now.ids[kind] for kind in now.ids)
    ids = {kind: max(used[kind], now.ids[kind]) + MARGIN for kind in now.ids}
    return MetadataCheck(
        state, now.changes, mark.metadata.changes, ids if endangered else {}
    )
