"""Runs of a share group, for people: who has which messages, and a lease that is to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.shares import known_queues
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import ListedRun
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import QueueInfo
from metadata.db import access, audit
from metadata.db.transactions import reachable
from metadata.errors import Code, Conflict, NotFound
from metadata.groups import groups, ownership
from metadata.groups.groups import GroupView


@dataclass(frozen=True, slots=True)
class LeasedRun:
    """A run of a queue. `owner`: the member's name, None if nobody has it or the member is gone.

    `messages` are those that are not `finished`; `lease_left_ms` is negative when the lease is over.
    """

    topic: str
    queue: int
    number: int
    first: int
    end: int
    owner: str | None
    deliveries: int
    messages: int
    finished: int
    lease_left_ms: int

    @property
    def is_leased(self) -> bool:
        """Return True while its lease lasts."""
        return self.lease_left_ms > 0


@dataclass(frozen=True, slots=True)
class LeasedRuns:
    """Runs by queue and offset, and the nodes that did not answer, {name: why}."""

    runs: tuple[LeasedRun, ...]
    away: Mapping[str, str]


def runs(*, group: str, actor: Actor, queue: int | None = None, limit: int = 100) -> LeasedRuns:
    """Runs of a share group, or of one of its queues, at most `limit`. Needs any right on the group.

    Raises NotFound, Conflict (group_settings_differ) for a group of another mode.
    """
    view = _share_group(group, actor)
    owned = {one.queue: one for one in ownership.queues(group=group, actor=actor)}
    wanted = [one for one in owned if queue in (None, one)]
    if queue is not None and not wanted:
        raise NotFound(f"Group {group} does not read queue {queue}.", code=Code.QUEUE_NOT_FOUND)
    found: list[ListedRun] = []

    def read(session: Session, queues: Sequence[int]) -> None:
        found.extend(run_sql.list_runs(session, group_id=view.id, queues=queues, most=limit))

    nodes = sweeping.queues_by_node(wanted)
    away = sweeping.ask(nodes, read, what=f"Runs of group {group}", prepare=known_queues.prepare)
    names = {one.consumer_id_prefix: one.name for one in view.members}
    shown = sorted(found, key=lambda one: (one.run.queue, one.run.first, one.run.end))[:limit]
    return LeasedRuns(tuple(_shown(one, owned[one.run.queue], names) for one in shown), away)


def _shown(one: ListedRun, queue: ownership.QueueOwner, names: Mapping[str, str]) -> LeasedRun:
    run = one.run
    left = run.left.bit_count()
    return LeasedRun(
        topic=queue.topic,
        queue=run.queue,
        number=queue.number,
        first=run.first,
        end=run.end,
        owner=names.get(run.owner.rpartition(".")[0]) if run.owner else None,
        deliveries=run.deliveries,
        messages=left,
        finished=run.length - left,
        lease_left_ms=one.lease_left_ms,
    )


def release(*, group: str, queue: int, first: int, actor: Actor) -> int:
    """End the leases of the runs of a queue that begin at an offset; return how many.

    Its messages are delivered to the next member that asks. What the present one finishes until then counts.
    Needs `manage` on the group. Raises NotFound, Conflict (group_settings_differ), NodeUnavailable.
    """
    access.require(actor, "manage", group, what="group")
    view = _share_group(group, actor)
    info = _queue(view, queue)
    with reachable():
        after = {"queue": queue, "first": first}
        audit.record(actor=actor, verb="release", kind="group", name=group, after=after)
    with node_pools.node(info.node_id).reading() as session:
        count = run_sql.end_leases(session, group_id=view.id, queue=queue, first=first)
    if count:
        known_queues.freed(view.id, queue, runs=count)
    return count


def _queue(view: GroupView, queue: int) -> QueueInfo:
    info = snapshot.find_queue(queue)
    reading = snapshot.current().subscription(view.id, info.topic_id)
    if reading is None:
        raise NotFound(f"Group {view.name} does not read queue {queue}.", code=Code.QUEUE_NOT_FOUND)
    return info


def _share_group(group: str, actor: Actor) -> GroupView:
    view = groups.describe(name=group, actor=actor)
    if view.mode != "share":
        raise Conflict(
            f"Group {group} is {view.mode}: only share groups lease messages.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    return view
