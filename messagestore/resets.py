"""Moving a group's offsets by hand: to the earliest, the latest, an offset or a point in time.

A reset is a change of epoch: one UPDATE on the node sets the position, takes the owner away and raises
the epoch, so whoever read the queue before can no longer commit there. The group must be stopped, so
that nobody handles messages while its place moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from messagestore import connections, tables
from messagestore.sessions import Session
from messagestore.tables import Position, ReaderKey
from messagestore.times import first_at
from metadata import access, groups, instances, ownership
from metadata.actors import Actor
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.groups import GroupView
from metadata.ownership import QueueOwner

MOST_NAMED = 50  # instances, in an error


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: `earliest`, `latest`, `offset` with an offset, or `time` with ms since 1970 or ms ago."""

    to: str
    offset: int | None = None
    at_ms: int | None = None
    ago_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A queue's move; forward skips messages, backward repeats them."""

    queue: int
    number: int
    from_offset: int
    to_offset: int


def check(target: Target) -> Target:
    """The target itself. Raises Invalid when a value is missing, wrong or too much."""
    values = {"offset": target.offset, "at_ms": target.at_ms, "ago_ms": target.ago_ms}
    given = {name for name, value in values.items() if value is not None}
    allowed: dict[str, list[set[str]]] = {
        "earliest": [set()],
        "latest": [set()],
        "offset": [{"offset"}],
        "time": [{"at_ms"}, {"ago_ms"}],
    }
    if target.to not in allowed:
        raise Invalid.field("to", f"{target.to!r} is not one of {', '.join(allowed)}")
    if given not in allowed[target.to]:
        takes = " or ".join(", ".join(sorted(names)) or "no further field" for names in allowed[target.to])
        raise Invalid.field("to", f"{target.to} takes {takes}")
    for name in given:
        value = values[name]
        if value is not None and value < 0:
            raise Invalid.field(name, f"{value} is negative")
    return target


def reset(
    *,
    group: str,
    topic: str,
    target: Target,
    actor: Actor,
    queues: Sequence[int] | None = None,
    instance: str | None = None,
    dry_run: bool = False,
) -> list[Move]:
    """Moves a stopped group's offsets in a topic, or in some of its queues; the moves, made or only planned.

    In a broadcasting group it moves those of one instance, which must be named. An offset outside a queue's
    low … head is refused. Needs `manage` on the group. Raises NotFound, Conflict (group_running), Invalid,
    NodeUnavailable; queues moved before that stay moved, and a repeat is safe.
    """
    access.require(actor, "manage", group, what="group")
    check(target)
    described = groups.describe(name=group, actor=actor)
    _check_instance(described, instance)
    owned = [row for row in ownership.queues(group=group, actor=actor) if row.instance == instance]
    owned = _chosen(owned, group, topic, queues)
    if not dry_run and not described.stopped:
        what = f"Group {group} is running: stop it first (PATCH /api/v1/groups/{group} with stopped true)."
        raise Conflict(what, code=Code.GROUP_RUNNING)
    moves = [_planned(row, target) for row in owned]
    if not dry_run:
        for row, move in zip(owned, moves, strict=True):
            _move(row, move, actor)
    return moves


def _check_instance(group: GroupView, instance: str | None) -> None:
    """Raises Invalid unless an instance is named that exists; in a clustering group none may be."""
    if group.mode != "broadcasting":
        if instance is not None:
            raise Invalid.field("instance", f"group {group.name} shares its queues: it has no instances")
        return
    there_are = [name for name, _ in instances.names(group.id).values()]
    if instance not in there_are:
        what = "name the instance to move" if instance is None else f"there is no instance {instance}"
        listed = ", ".join(there_are[:MOST_NAMED]) or "none yet"
        raise Invalid.field("instance", f"group {group.name} is broadcasting: {what}; it has {listed}")


def _chosen(
    owned: Sequence[QueueOwner], group: str, topic: str, queues: Sequence[int] | None
) -> list[QueueOwner]:
    mine = [row for row in owned if row.topic == topic]
    if not mine:
        what = f"Group {group} does not subscribe to {topic}. Subscribe: catmq subscribe {group} {topic}"
        raise NotFound(what, code=Code.SUBSCRIPTION_NOT_FOUND)
    foreign = set(queues or ()) - {row.queue for row in mine}
    if foreign:
        raise Invalid.field("queues", f"{min(foreign)} is not a queue of topic {topic}")
    return [row for row in mine if queues is None or row.queue in queues]


def _planned(row: QueueOwner, target: Target) -> Move:
    with connections.node(row.node_id).reading() as session:
        positions = tables.read_positions(
            session, group_id=row.group_id, queues=[row.queue], instance=row.reader
        )
        position = positions.get(row.queue)
        if position is None or position.committed is None:
            raise NotFound(f"Queue {row.queue} has no position yet; try again.", code=Code.QUEUE_NOT_FOUND)
        return Move(row.queue, row.number, position.committed, _offset(session, position, target))


def _offset(session: Session, position: Position, target: Target) -> int:
    if target.to == "earliest":
        return position.low
    if target.to == "latest":
        return position.head
    if target.offset is not None:
        if not position.low <= target.offset <= position.head:
            bounds = f"{position.low} … {position.head}"
            raise Invalid.field(
                "offset", f"{target.offset} is outside {bounds}, the bounds of queue {position.queue}"
            )
        return target.offset
    at = target.at_ms if target.at_ms is not None else tables.now_ms(session) - (target.ago_ms or 0)
    kept = position.low, position.head
    return first_at(session, queue=position.queue, bounds=kept, at_ms=at)


def _move(row: QueueOwner, move: Move, actor: Actor) -> None:
    reader = ReaderKey(row.group_id, row.queue, row.reader)
    ownership.record_reset(row=row, from_offset=move.from_offset, to_offset=move.to_offset, actor=actor)
    with connections.node(row.node_id).writing() as session:
        standing = tables.reset_reader(session, reader=reader, offset=move.to_offset)
    if standing is None:
        raise NotFound(f"Queue {row.queue} lost its position meanwhile.", code=Code.QUEUE_NOT_FOUND)
    ownership.adopt_node_epoch(
        group_id=row.group_id, queue=row.queue, epoch=standing[0], instance_id=row.instance_id
    )
