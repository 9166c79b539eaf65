"""Runs of a share group for operators: list who holds which messages, and end leases by
hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.shares import known_queues
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import ListedRun
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access, audit
from metadata.db.transactions import reachable
from metadata.errors import Code, Conflict, NotFound
from metadata.groups import groups, ownership
from metadata.groups.groups import GroupView
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import GroupMode
from metadata.rules.rights import Right


class LeasedRun(Struct, frozen=True):
    """A run: offsets `first` to `end` (not included), `messages` of which are not finished.

    `owner` is the name of the member, null for nobody; `lease_left_ms` is negative when the
    lease is over.
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
        """Return True while the lease of the run lasts."""
        return self.lease_left_ms > 0


class LeasedRuns(Struct, frozen=True):
    """Runs by queue and offset. `away` has the nodes that did not answer, {name: reason}."""

    runs: tuple[LeasedRun, ...]
    away: Mapping[str, str]


def runs(
    *, group: str, actor: Actor, queue: int | None = None, limit: int = 100
) -> LeasedRuns:
    """Return at most `limit` runs of a share group, or of a single queue.

    Needs any right on the group. Raises NotFound, and Conflict (group_settings_differ) if
    it is no share group.
    """
    view = _share_group(group, actor)
    queue_rows = {row.queue: row for row in ownership.list_queues(group=group, actor=actor)}
    queue_ids = [q for q in queue_rows if queue in (None, q)]
    if queue is not None and not queue_ids:
        raise NotFound(
            f"Group {group} does not read queue {queue}.", code=Code.QUEUE_NOT_FOUND
        )
    listed_runs: list[ListedRun] = []

    def read(session: Session, queues: Sequence[int]) -> None:
        listed_runs.extend(
            run_sql.list_runs(session, group_id=view.id, queues=queues, most=limit)
        )

    nodes = sweeping.queues_by_node(queue_ids)
    away = sweeping.query_nodes(
        nodes, read, subject=f"Runs of group {group}", prepare=known_queues.prepare
    )
    names = {member.consumer_id_prefix: member.name for member in view.members}
    # Each node returned its first runs up to `limit`, so the first of all nodes are among
    # them.
    listed_runs.sort(key=lambda r: (r.run.queue, r.run.first, r.run.end))
    leased_runs = []
    for listed in listed_runs[:limit]:
        run, queue_row = listed.run, queue_rows[listed.run.queue]
        unfinished = run.unfinished_bits.bit_count()
        leased_runs.append(
            LeasedRun(
                topic=queue_row.topic,
                queue=run.queue,
                number=queue_row.number,
                first=run.first,
                end=run.end,
                owner=names.get(run.owner.rpartition(".")[0]) if run.owner else None,
                deliveries=run.deliveries,
                messages=unfinished,
                finished=run.length - unfinished,
                lease_left_ms=listed.lease_left_ms,
            )
        )
    return LeasedRuns(tuple(leased_runs), away)


def release(*, group: str, queue: int, first: int, actor: Actor) -> int:
    """End the leases of the runs of a queue that begin at an offset. Return the number of
    runs.

    Their messages are delivered to the next member that asks. Until then the present member
    may still finish them. Needs `manage` on the group. Raises NotFound, Conflict
    (group_settings_differ), NodeUnavailable.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    view = _share_group(group, actor)
    info = snapshot.find_queue(queue)
    if snapshot.current().subscription(view.id, info.topic_id) is None:
        raise NotFound(
            f"Group {group} does not read queue {queue}.", code=Code.QUEUE_NOT_FOUND
        )
    # Audited before the node changes, so that no lease ends without an audit row.
    with reachable():
        after = {"queue": queue, "first": first}
        audit.record(actor=actor, verb=Verb.RELEASE, kind="group", name=group, after=after)
    with node_pools.node(info.node_id).reading() as session:
        count = run_sql.end_leases(session, group_id=view.id, queue=queue, first=first)
    if count:
        known_queues.note_freed(view.id, queue, runs=count)
    return count


def _share_group(group: str, actor: Actor) -> GroupView:
    """Return a share group. Raises NotFound, and Conflict if the group has another mode."""
    view = groups.describe(name=group, actor=actor)
    if view.mode != GroupMode.SHARE:
        raise Conflict(
            f"Group {group} is {view.mode}: only share groups lease messages.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    return view
