"""Moving a group's offsets by hand: to the earliest, the latest, an offset, a point in time or those of
another group; and back.

A reset is a change of epoch: one UPDATE on the node sets the position, takes the owner away and raises
the epoch, so whoever read the queue before can no longer commit there. Metadata follows with an epoch above
that. So a running member hears at its next heartbeat, which a waiting pull makes it send at once, that it
owns the queue anew: it drops what it fetched, acquires the queue, and learns its new position there. What
its handlers have in hand ends, and commits nothing. Queues are moved one by one; each move is kept
(metadata/groups/offset_resets.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from messagestore.consume import cloned_offsets
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import left
from messagestore.heads.time_lookup import first_at
from messagestore.pool import node_pools
from messagestore.tables import node_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position, ReaderKey
from metadata.actors import Actor
from metadata.db import access
from metadata.errors import Code, Invalid, NotFound
from metadata.groups import groups, offset_resets, ownership
from metadata.groups.groups import GroupView
from metadata.groups.ownership import QueueOwner
from metadata.membership import instances

MOST_NAMED = 50  # instances, in an error


@dataclass(frozen=True, slots=True)
class Target:
    """Reset target: `earliest`, `latest`, `offset` with an offset, `time` with ms since 1970 or ms ago, or
    `group` with the group whose committed offsets are taken over, as they are at that moment.
    """

    to: str
    offset: int | None = None
    at_ms: int | None = None
    ago_ms: int | None = None
    source_group: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A queue's move: forward skips messages, backward repeats them.

    `asked`: the offset that was asked for, where `to_offset` is as near to it as there are messages; else
    None. `reset` is what the move is known by when it is to be undone, '' while it is only planned. `kept`:
    the queue stays where it is, as the source group has no offset there.
    """

    queue: int
    number: int
    from_offset: int
    to_offset: int
    topic: str = field(default="", compare=False)
    skipped: int = field(default=0, compare=False)
    repeated: int = field(default=0, compare=False)
    asked: int | None = field(default=None, compare=False)
    reset: str = field(default="", compare=False)
    kept: bool = field(default=False, compare=False)


def check(target: Target) -> Target:
    """The target itself. Raises Invalid when a value is missing, wrong or too much."""
    values = {"offset": target.offset, "at_ms": target.at_ms, "ago_ms": target.ago_ms}
    given = {name for name, value in values.items() if value is not None}
    given |= {"source_group"} if target.source_group else set()
    allowed: dict[str, list[set[str]]] = {
        "earliest": [set()],
        "latest": [set()],
        "offset": [{"offset"}],
        "time": [{"at_ms"}, {"ago_ms"}],
        "group": [{"source_group"}],
    }
    if target.to not in allowed:
        raise Invalid.field("to", f"{target.to!r} is not one of {', '.join(allowed)}")
    if given not in allowed[target.to]:
        takes = " or ".join(", ".join(sorted(names)) or "no further field" for names in allowed[target.to])
        raise Invalid.field("to", f"{target.to} requires {takes}")
    for name, value in values.items():
        if value is not None and value < 0:
            raise Invalid.field(name, f"{value} is negative")
    return target


def reset(
    *,
    group: str,
    target: Target,
    actor: Actor,
    topic: str | None = None,
    queues: Sequence[int] | None = None,
    instance: str | None = None,
    dry_run: bool = False,
) -> list[Move]:
    """Move a group's offsets in all topics, in one, or in some queues; the moves, made or only planned.

    The group may be running. In a broadcasting group it moves those of one instance, which must be named. An
    offset outside a queue's low … head becomes the nearest inside, and the move says so. Needs `manage` on
    the group, and `consume` or `browse` on a topic that takes over those of another group.
    Raises NotFound, Invalid, NodeUnavailable; queues moved before that stay moved, and a repeat is safe.
    """
    access.require(actor, "manage", group, what="group")
    check(target)
    _check_instance(groups.describe(name=group, actor=actor), instance)
    owned = [row for row in ownership.queues(group=group, actor=actor) if row.instance == instance]
    owned = _chosen(owned, group, topic, queues)
    targets = _cloned(owned, target, topic, actor) if target.to == "group" else [target] * len(owned)
    planned = [_planned(row, one) for row, one in zip(owned, targets, strict=True)]
    return planned if dry_run else _made(owned, planned, actor)


def undo(*, group: str, actor: Actor, reset: str | None = None, dry_run: bool = False) -> list[Move]:
    """Move the offsets of a reset back to where they were; None: of the last one that was not undone.

    That is a reset, too, and can be undone. Queues that the group reads no more are left out. Needs `manage`
    on the group. Raises NotFound(reset_not_found), NodeUnavailable.
    """
    access.require(actor, "manage", group, what="group")
    past = offset_resets.of(group=group, reset=reset)
    owned = {(row.queue, row.instance): row for row in ownership.queues(group=group, actor=actor)}
    pairs = [(owned[one.queue, one.instance], one) for one in past if (one.queue, one.instance) in owned]
    rows = [row for row, _ in pairs]
    planned = [_planned(row, Target("offset", offset=one.from_offset)) for row, one in pairs]
    return planned if dry_run else _made(rows, planned, actor, undoes=past[0].reset)


def _made(
    owned: Sequence[QueueOwner], planned: Sequence[Move], actor: Actor, *, undoes: str = ""
) -> list[Move]:
    reset = str(uuid.uuid4())
    return [
        move if move.kept else _move(row, replace(move, reset=reset), actor, undoes)
        for row, move in zip(owned, planned, strict=True)
    ]


def _check_instance(group: GroupView, instance: str | None) -> None:
    """Raise Invalid unless an instance is named that exists; in a clustering group none may be."""
    if group.mode != "broadcasting":
        if instance is not None:
            raise Invalid.field("instance", f"group {group.name} is not broadcasting, so it has no instances")
        return
    there_are = [name for name, _ in instances.names(group.id).values()]
    if instance not in there_are:
        what = "name the instance" if instance is None else f"there is no instance {instance}"
        listed = ", ".join(there_are[:MOST_NAMED]) or "none yet"
        raise Invalid.field("instance", f"group {group.name} is broadcasting: {what}; it has {listed}")


def _chosen(
    owned: Sequence[QueueOwner], group: str, topic: str | None, queues: Sequence[int] | None
) -> list[QueueOwner]:
    mine = [row for row in owned if topic is None or row.topic == topic]
    if not mine:
        what = f"Group {group} does not subscribe to {topic or 'anything'}."
        remedy = f"Subscribe: catmq subscribe {group} {topic or 'TOPIC'}"
        raise NotFound(f"{what} {remedy}", code=Code.SUBSCRIPTION_NOT_FOUND)
    foreign = set(queues or ()) - {row.queue for row in mine}
    if foreign:
        of = f"topic {topic}" if topic else f"those that group {group} reads"
        raise Invalid.field("queues", f"{min(foreign)} is not a queue of {of}")
    return [row for row in mine if queues is None or row.queue in queues]


def _cloned(
    owned: Sequence[QueueOwner], target: Target, topic: str | None, actor: Actor
) -> list[Target | None]:
    """The committed offset of the source group in each queue; None where it has none."""
    group = owned[0].group
    if topic is None:
        raise Invalid.field("topic", "name the topic whose offsets are those of another group")
    if target.source_group == group:
        raise Invalid.field("source_group", f"{group} is the group whose offsets are reset: name another one")
    there = cloned_offsets.committed(group=str(target.source_group), topic=topic, actor=actor)
    return [Target("offset", offset=there[row.queue]) if row.queue in there else None for row in owned]


def _planned(row: QueueOwner, target: Target | None) -> Move:
    """The move of a queue; without a target it stays where it is."""
    with node_pools.node(row.node_id).reading() as session:
        positions = reader_sql.read_positions(
            session, group_id=row.group_id, queues=[row.queue], instance=row.reader
        )
        position = positions.get(row.queue)
        if position is None or position.committed is None:
            raise NotFound(f"Queue {row.queue} has no committed offset yet.", code=Code.QUEUE_NOT_FOUND)
        at = position.committed
        if target is None:
            return Move(row.queue, row.number, at, at, topic=row.topic, kept=True)
        to = _offset(session, position, target)
        asked = target.offset if target.offset is not None and target.offset != to else None
        move = Move(row.queue, row.number, at, to, topic=row.topic, asked=asked)
        return _counted(session, move, position.low)


def _counted(session: Session, move: Move, low: int) -> Move:
    """The move with how many messages it skips or repeats; what is gone, and declared gaps, do not count."""
    lower, upper = sorted((max(move.from_offset, low), max(move.to_offset, low)))
    gaps = queue_sql.read_gaps(session, queue=move.queue, position=lower)
    count = left(lower, upper, gaps=gaps)
    forward = move.to_offset > move.from_offset
    return replace(move, skipped=count if forward else 0, repeated=0 if forward else count)


def _offset(session: Session, position: Position, target: Target) -> int:
    if target.to == "earliest":
        return position.low
    if target.to == "latest":
        return position.head
    if target.offset is not None:
        return min(max(target.offset, position.low), position.head)
    at = target.at_ms if target.at_ms is not None else node_sql.now_ms(session) - (target.ago_ms or 0)
    kept = position.low, position.head
    return first_at(session, queue=position.queue, bounds=kept, at_ms=at)


def _move(row: QueueOwner, move: Move, actor: Actor, undoes: str) -> Move:
    """Move one queue; the move as it was made: members may have committed since it was planned."""
    begun = offset_resets.begin(
        row=row,
        reset=move.reset,
        from_offset=move.from_offset,
        to_offset=move.to_offset,
        undoes=undoes,
        actor=actor,
    )
    reader = ReaderKey(row.group_id, row.queue, row.reader)
    with node_pools.node(row.node_id).writing() as session:
        rewound = reader_sql.reset_reader(session, reader=reader, offset=move.to_offset)
    if rewound is None:
        raise NotFound(f"Queue {row.queue} lost its reader row meanwhile.", code=Code.QUEUE_NOT_FOUND)
    ownership.adopt_node_epoch(
        group_id=row.group_id, queue=row.queue, epoch=rewound.epoch, instance_id=row.instance_id
    )
    offset_resets.done(move=begun, from_offset=rewound.former)
    if rewound.former == move.from_offset:
        return move
    with node_pools.node(row.node_id).reading() as session:
        head = queue_sql.read_head(session, queue=row.queue)
        return _counted(session, replace(move, from_offset=rewound.former), head.low if head else 0)
