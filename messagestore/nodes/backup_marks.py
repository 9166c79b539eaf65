"""A mark beside a backup: how far metadata and every node were, in one JSON file without
secrets.

Metadata is read first, then the nodes: so the nodes of a mark may know more than its
metadata, never less. The same order holds for the backups themselves.
"""

from __future__ import annotations

import msgspec

from messagestore.engine import db_errors
from messagestore.pool import session_pool
from messagestore.tables import node_sql, promotion_sql
from messagestore.tables.promotion_sql import Binlog
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access
from metadata.errors import Invalid, NodeUnavailable
from metadata.nodes import id_rows

FORM = 1  # of the file; another one is refused


class MarkedBinlog(msgspec.Struct, frozen=True, kw_only=True):
    """Position in a binary log; `why`: the reason if there is no file and position."""

    gtid: str
    file: str
    position: int
    why: str


class MarkedMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of metadata: `ids` are the highest of queues, groups, topics and instances."""

    incarnation: str
    changes: int
    ids: dict[str, int]


class MarkedQueue(msgspec.Struct, frozen=True, kw_only=True):
    queue: int
    topic: str
    head: int
    low: int


class MarkedReader(msgspec.Struct, frozen=True, kw_only=True):
    group_id: int
    group: str
    instance: str
    queue: int
    epoch: int
    committed: int


class MarkedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node at `at_ms` of its clock; `gaps` are (queue, from, to), `to` exclusive."""

    name: str
    identity: str
    epoch: int
    at_ms: int
    binlog: MarkedBinlog | None
    queues: list[MarkedQueue]
    readers: list[MarkedReader]
    gaps: list[tuple[int, int, int]]


class MissingNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    why: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `missing`: nodes that could not be reached."""

    form: int
    at_ms: int
    metadata: MarkedMetadata
    nodes: list[MarkedNode]
    missing: list[MissingNode]

    def node(self, name: str) -> MarkedNode | None:
        return next((one for one in self.nodes if one.name == name), None)


class _Form(msgspec.Struct):
    form: int


def take_mark(*, actor: Actor) -> Mark:
    """Return a mark of now, with nodes that are away in `missing`. Needs `admin`."""
    access.require_everything(actor, "all", what="node")
    before = id_rows.read_counters()
    snapshot.refresh()
    nodes, missing = [], []
    for info in sorted(snapshot.current().nodes.values(), key=lambda one: one.name):
        try:
            nodes.append(_marked(info))
        except (db_errors.Final, NodeUnavailable) as error:
            missing.append(MissingNode(name=info.name, why=error.detail))
    counted = MarkedMetadata(
        incarnation=before.incarnation, changes=before.changes, ids=before.ids
    )
    return Mark(
        form=FORM, at_ms=before.at_ms, metadata=counted, nodes=nodes, missing=missing
    )


def encode(mark: Mark) -> bytes:
    return msgspec.json.format(msgspec.json.encode(mark), indent=1) + b"\n"


def decode(text: bytes) -> Mark:
    """Return the mark of a file. Raises Invalid for what is none, or of another form."""
    try:
        form = msgspec.json.decode(text, type=_Form).form
        if form != FORM:
            raise Invalid.field("file", f"has form {form}; this release reads form {FORM}")
        return msgspec.json.decode(text, type=Mark)
    except msgspec.MsgspecError as error:
        raise Invalid.field(
            "file", f"is not a file of manage.py backup_mark: {error}"
        ) from None


def _marked(info: NodeInfo) -> MarkedNode:
    with session_pool.direct(info) as session:
        # first: what is read next is at least as far
        binlog = promotion_sql.read_binlog(session)
        found = promotion_sql.read_mark(session)
        identity, at_ms = promotion_sql.read_identity(session), node_sql.now_ms(session)
    topics, groups = id_rows.topic_names(), id_rows.group_names()
    return MarkedNode(
        name=info.name,
        identity=identity,
        epoch=info.epoch,
        at_ms=at_ms,
        binlog=_binlog(binlog),
        queues=[
            MarkedQueue(queue=queue, topic=topics.get(queue, ""), head=head, low=low)
            for queue, head, low, _ in found.heads
        ],
        readers=[
            MarkedReader(
                group_id=group, group=groups.get(group, ""), instance=instance, queue=queue,
                epoch=epoch, committed=committed,
            )
            for group, instance, queue, epoch, committed in found.readers
        ],
        gaps=[(queue, first, end) for queue, first, end in found.gaps],
    )  # fmt: skip


def _binlog(found: Binlog | None) -> MarkedBinlog | None:
    return MarkedBinlog(**found._asdict()) if found is not None else None
