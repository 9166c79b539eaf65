"""Marks of backups: a JSON file without secrets that records the state of metadata and all
nodes.

Metadata is read first, then the nodes. So the nodes of a mark may be ahead of its metadata,
never behind. The backups themselves have to keep the same order.
"""

from __future__ import annotations

import msgspec

from messagestore.engine import db_errors
from messagestore.pool import session_pool
from messagestore.tables import node_sql, promotion_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import Invalid, NodeUnavailable
from metadata.nodes import id_rows

FORM = 1  # version of the file format; other versions are refused


class MarkedBinlog(msgspec.Struct, frozen=True, kw_only=True):
    """Position in a binary log; `why` is the reason if file and position are empty."""

    gtid: str
    file: str
    position: int
    why: str


class MarkedMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of metadata; `ids` are the highest ids of queues, groups, topics and
    instances.
    """

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
    """A node at `at_ms` by its clock; `gaps` are (queue, first, end), `end` exclusive."""

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
    """The whole file; `missing` are nodes that could not be reached."""

    form: int
    at_ms: int
    metadata: MarkedMetadata
    nodes: list[MarkedNode]
    missing: list[MissingNode]

    def node(self, name: str) -> MarkedNode | None:
        return next((node for node in self.nodes if node.name == name), None)


class _Form(msgspec.Struct):
    form: int


def take_mark(*, actor: Actor) -> Mark:
    """Return a mark of the present state. Needs `admin`. Unreachable nodes are in
    `missing`.
    """
    access.require_everything(actor, "all", what="node")
    # Before the nodes: see the module docstring.
    counters = id_rows.read_counters()
    snapshot.refresh()
    nodes, missing = [], []
    for info in sorted(snapshot.current().nodes.values(), key=lambda node: node.name):
        try:
            with session_pool.direct(info) as session:
                # The binary log first: everything read after it is at least as new.
                binlog = promotion_sql.read_binlog(session)
                node_mark = promotion_sql.read_mark(session)
                identity = promotion_sql.read_identity(session)
                at_ms = node_sql.now_ms(session)
        except (db_errors.Final, NodeUnavailable) as error:
            missing.append(MissingNode(name=info.name, why=error.detail))
            continue
        topics, groups = id_rows.topic_names(), id_rows.group_names()
        node = MarkedNode(
            name=info.name,
            identity=identity,
            epoch=info.epoch,
            at_ms=at_ms,
            binlog=MarkedBinlog(**binlog._asdict()) if binlog is not None else None,
            queues=[
                MarkedQueue(queue=queue, topic=topics.get(queue, ""), head=head, low=low)
                for queue, head, low, _ in node_mark.heads
            ],
            readers=[
                MarkedReader(
                    group_id=group, group=groups.get(group, ""), instance=instance,
                    queue=queue, epoch=epoch, committed=committed,
                )
                for group, instance, queue, epoch, committed in node_mark.readers
            ],
            gaps=[(queue, first, end) for queue, first, end in node_mark.gaps],
        )  # fmt: skip
        nodes.append(node)
    metadata = MarkedMetadata(
        incarnation=counters.incarnation, changes=counters.changes, ids=counters.ids
    )
    return Mark(
        form=FORM, at_ms=counters.at_ms, metadata=metadata, nodes=nodes, missing=missing
    )


def encode(mark: Mark) -> bytes:
    return msgspec.json.format(msgspec.json.encode(mark), indent=1) + b"\n"


def decode(text: bytes) -> Mark:
    """Return the mark in a file. Raises Invalid for other files and other formats."""
    try:
        # The format first: a later one may have other fields.
        form = msgspec.json.decode(text, type=_Form).form
        if form != FORM:
            raise Invalid.field("file", f"has form {form}; this release reads form {FORM}")
        return msgspec.json.decode(text, type=Mark)
    except msgspec.MsgspecError as error:
        raise Invalid.field(
            "file", f"is not a file of manage.py backup_mark: {error}"
        ) from None
