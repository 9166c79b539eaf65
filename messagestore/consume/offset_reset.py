"""Offset resets: move a group's offsets by hand, and undo such a move.

The target is the earliest or latest offset, a given offset, a point in time, or the offsets
of another group. A reset is a change of epoch, so it needs no stop of the group:

1. An UPDATE on the node sets the position, clears the owner and raises the epoch. From
   then on the former owner can no longer commit.
2. Metadata follows with an epoch above that, and the generation of the group rises. A
   waiting pull returns because of that, and the member sends a heartbeat.
3. The answer grants the queue under the new epoch. The member drops the messages that it
   fetched, acquires the queue, and gets the new position. Handlers that still run commit
   nothing.

Each move of a queue is made by itself, and stored (metadata/groups/offset_resets.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from messagestore.consume import cloned_offsets
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import count_messages
from messagestore.heads.time_lookup import first_at
from messagestore.pool import node_pools
from messagestore.tables import node_sql, queue_sql, reader_sql
from messagestore.tables.shapes import ReaderKey
from metadata.actors import Actor
from metadata.db import access
from metadata.errors import Code, Invalid, NotFound
from metadata.groups import groups, offset_resets, ownership
from metadata.groups.groups import GroupView
from metadata.groups.ownership import QueueOwner
from metadata.membership import broadcast_instances
from metadata.rules.groups.states import GroupMode
from metadata.rules.rights import Right

MOST_NAMED = 50  # instances that an error lists


class Target(Struct, frozen=True):
    """Target of a reset. `to` is:

    * `earliest`, `latest`: the lowest offset, or the log end offset, of each queue
    * `offset`: with `offset`
    * `time`: with `at_ms` (since 1970) or `ago_ms`
    * `group`: with `source_group`, whose committed offsets are copied as they are at that
      moment
    """

    to: str
    offset: int | None = None
    at_ms: int | None = None
    ago_ms: int | None = None
    source_group: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Move of a queue. A move forward skips messages, a move backward repeats them.

    `asked` is the requested offset if it is outside the queue's messages, so that
    `to_offset` is the nearest offset inside; else None. `reset` is the id under which the
    move can be undone, '' while the move is only planned. `kept` is True if the queue stays
    where it is, because the source group has no committed offset there.
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
    """Return the target. Raises Invalid if a value is missing, wrong or does not belong to
    it.
    """
    values = {"offset": target.offset, "at_ms": target.at_ms, "ago_ms": target.ago_ms}
    present_fields = {name for name, value in values.items() if value is not None}
    present_fields |= {"source_group"} if target.source_group else set()
    allowed: dict[str, list[set[str]]] = {
        "earliest": [set()],
        "latest": [set()],
        "offset": [{"offset"}],
        "time": [{"at_ms"}, {"ago_ms"}],
        "group": [{"source_group"}],
    }
    if target.to not in allowed:
        raise Invalid.field("to", f"{target.to!r} is not one of {', '.join(allowed)}")
    if present_fields not in allowed[target.to]:
        expected_fields = " or ".join(
            ", ".join(sorted(names)) or "no further field" for names in allowed[target.to]
        )
        raise Invalid.field("to", f"{target.to} requires {expected_fields}")
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
    """Move a group's offsets in all topics, in a topic, or in some queues. Return the moves.

    With `dry_run` the moves are only planned. The group may be running. In a broadcasting
    group an instance must be named, and only its offsets move. An offset outside a queue's
    low … head becomes the nearest offset inside, and the move has the requested offset in
    `asked`.

    Needs `manage` on the group, and `consume` or `browse` on the topic if the target is
    another group. Raises NotFound, Invalid, NodeUnavailable. Queues that were moved before
    the error stay moved, and the call may be repeated.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    check(target)
    _check_instance(groups.describe(name=group, actor=actor), instance)
    topic_rows = [
        row
        for row in ownership.list_queues(group=group, actor=actor)
        if row.instance == instance and (topic is None or row.topic == topic)
    ]
    if not topic_rows:
        cause = f"Group {group} does not subscribe to {topic or 'anything'}."
        remedy = f"Subscribe: catmq subscribe {group} {topic or 'TOPIC'}"
        raise NotFound(f"{cause} {remedy}", code=Code.SUBSCRIPTION_NOT_FOUND)
    unknown_queues = set(queues or ()) - {row.queue for row in topic_rows}
    if unknown_queues:
        owner_text = f"topic {topic}" if topic else f"those that group {group} reads"
        raise Invalid.field(
            "queues", f"{min(unknown_queues)} is not a queue of {owner_text}"
        )
    queue_rows = [row for row in topic_rows if queues is None or row.queue in queues]
    if target.to == "group":
        moves = _plan_clone(queue_rows, target, topic, actor)
    else:
        moves = [_plan_move(row, target) for row in queue_rows]
    return moves if dry_run else _make_moves(queue_rows, moves, actor)


def undo(
    *, group: str, actor: Actor, reset: str | None = None, dry_run: bool = False
) -> list[Move]:
    """Move the offsets of a reset back to where they were. Return the moves.

    Without `reset`, the last reset that is no undo itself and was not undone. An undo is a
    reset, too, and can be undone by its id. Queues that the group no longer reads are left
    out. Needs `manage` on the group. Raises NotFound(reset_not_found), NodeUnavailable.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    former_moves = offset_resets.moves_of_reset(group=group, reset=reset)
    queue_rows = {
        (row.queue, row.instance): row
        for row in ownership.list_queues(group=group, actor=actor)
    }
    pairs = [
        (queue_rows[former.queue, former.instance], former)
        for former in former_moves
        if (former.queue, former.instance) in queue_rows
    ]
    moves = [
        _plan_move(row, Target("offset", offset=former.from_offset))
        for row, former in pairs
    ]
    if dry_run:
        return moves
    rows = [row for row, _ in pairs]
    return _make_moves(rows, moves, actor, undoes=former_moves[0].reset)


def _make_moves(
    queue_rows: Sequence[QueueOwner],
    moves: Sequence[Move],
    actor: Actor,
    *,
    undoes: str = "",
) -> list[Move]:
    """Make the planned moves under a new reset id. Return them as they were made.

    A move differs from the planned move if members committed meanwhile. Raises NotFound if
    a reader row was deleted meanwhile, NodeUnavailable.
    """
    reset_id = str(uuid.uuid4())
    made_moves = []
    for row, planned_move in zip(queue_rows, moves, strict=True):
        if planned_move.kept:
            made_moves.append(planned_move)
            continue
        move = replace(planned_move, reset=reset_id)
        # Stored before the node changes, so that the move has an audit row even if this
        # process ends. Only a move that finish_move() completed can be undone.
        stored_move = offset_resets.begin_move(
            row=row,
            reset=reset_id,
            from_offset=move.from_offset,
            to_offset=move.to_offset,
            undoes=undoes,
            actor=actor,
        )
        reader = ReaderKey(row.group_id, row.queue, row.reader)
        with node_pools.node(row.node_id).writing() as session:
            rewound = reader_sql.reset_reader(session, reader=reader, offset=move.to_offset)
        # From here on no earlier owner can commit. If the process ends before metadata
        # follows, the next acquire meets the node's epoch, and metadata adopts it
        # (positions._acquire_on_node).
        if rewound is None:
            raise NotFound(
                f"Queue {row.queue} lost its reader row meanwhile.",
                code=Code.QUEUE_NOT_FOUND,
            )
        ownership.adopt_node_epoch(
            group_id=row.group_id,
            queue=row.queue,
            epoch=rewound.epoch,
            instance_id=row.instance_id,
        )
        # The offset that the UPDATE replaced is exact. The planned offset may be older.
        offset_resets.finish_move(move=stored_move, from_offset=rewound.former)
        if rewound.former != move.from_offset:
            move = replace(move, from_offset=rewound.former)
            with node_pools.node(row.node_id).reading() as session:
                head = queue_sql.read_head(session, queue=row.queue)
                move = _count_moved(session, move, head.low if head else 0)
        made_moves.append(move)
    return made_moves


def _check_instance(group: GroupView, instance: str | None) -> None:
    """Check that a broadcasting group's instance is named and exists.

    Raises Invalid if it is missing or unknown, and if an instance is named although the
    group has none.
    """
    if group.mode != GroupMode.BROADCASTING:
        if instance is not None:
            raise Invalid.field(
                "instance",
                f"group {group.name} is not broadcasting, so it has no instances",
            )
        return
    instance_names = [
        name for name, _ in broadcast_instances.list_instances(group.id).values()
    ]
    if instance not in instance_names:
        problem = (
            "name the instance" if instance is None else f"there is no instance {instance}"
        )
        examples = ", ".join(instance_names[:MOST_NAMED]) or "none yet"
        raise Invalid.field(
            "instance", f"group {group.name} is broadcasting: {problem}; it has {examples}"
        )


def _plan_clone(
    queue_rows: Sequence[QueueOwner], target: Target, topic: str | None, actor: Actor
) -> list[Move]:
    """Plan moves to the committed offsets of the source group.

    Raises Invalid if no topic is named, or the source group is the group itself.
    """
    group = queue_rows[0].group
    if topic is None:
        raise Invalid.field(
            "topic", "name the topic whose offsets are those of another group"
        )
    if target.source_group == group:
        raise Invalid.field(
            "source_group",
            f"{group} is the group whose offsets are reset: name another one",
        )
    source_offsets = cloned_offsets.committed(
        group=str(target.source_group), topic=topic, actor=actor
    )
    return [
        _plan_move(
            row,
            Target("offset", offset=source_offsets[row.queue])
            if row.queue in source_offsets
            else None,
        )
        for row in queue_rows
    ]


def _plan_move(row: QueueOwner, target: Target | None) -> Move:
    """Plan the move of a queue. Without a target it stays where it is.

    Raises NotFound if the queue has no committed offset.
    """
    with node_pools.node(row.node_id).reading() as session:
        positions = reader_sql.read_positions(
            session, group_id=row.group_id, queues=[row.queue], instance=row.reader
        )
        position = positions.get(row.queue)
        if position is None or position.committed is None:
            raise NotFound(
                f"Queue {row.queue} has no committed offset yet.", code=Code.QUEUE_NOT_FOUND
            )
        committed = position.committed
        if target is None:
            return Move(
                row.queue, row.number, committed, committed, topic=row.topic, kept=True
            )
        if target.to == "earliest":
            to_offset = position.low
        elif target.to == "latest":
            to_offset = position.head
        elif target.offset is not None:
            to_offset = min(max(target.offset, position.low), position.head)
        else:
            # `ago_ms` counts back from the node's clock, which also wrote `stored_at` of the
            # messages.
            at_ms = (
                target.at_ms
                if target.at_ms is not None
                else node_sql.now_ms(session) - (target.ago_ms or 0)
            )
            bounds = position.low, position.head
            to_offset = first_at(session, queue=row.queue, bounds=bounds, at_ms=at_ms)
        move = Move(
            row.queue,
            row.number,
            committed,
            to_offset,
            topic=row.topic,
            asked=target.offset if target.offset != to_offset else None,
        )
        return _count_moved(session, move, position.low)


def _count_moved(session: Session, move: Move, low: int) -> Move:
    """Return the move with the number of messages that it skips or repeats.

    Messages that retention deleted, and offsets of declared gaps, do not count.
    """
    lower, upper = sorted((max(move.from_offset, low), max(move.to_offset, low)))
    gaps = queue_sql.read_gaps(session, queue=move.queue, position=lower)
    count = count_messages(lower, upper, gaps=gaps)
    is_forward = move.to_offset > move.from_offset
    return replace(
        move, skipped=count if is_forward else 0, repeated=0 if is_forward else count
    )
