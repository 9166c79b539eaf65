"""Purges: what an archive proves that it holds need not be kept on the nodes.

What an active group has not read stays all the same: a group reads from the nodes, not from an archive.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from messagestore.pool import node_pools
from messagestore.retention import archives
from messagestore.retention.archives import Archived
from messagestore.retention.cleaning import REST_S, Cleaned, Run, Say
from messagestore.retention.planning import purge_plan
from messagestore.sweeping import Progress
from messagestore.tables import queue_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import Conflict
from metadata.topics import topic_rows
from metadata.topics.topic_rows import TopicView


def purge(
    *,
    topic: str,
    archive: Path,
    actor: Actor,
    dry_run: bool = False,
    rest_s: float = REST_S,
    progress: Say | None = None,
) -> list[Cleaned]:
    """Remove what the archive holds of a topic, by dropping partitions. Needs `manage`.

    For each queue what was done, or with `dry_run` would be. Every file of the archive is checked before.
    Raises Conflict for an archive that is damaged or of other data, NotFound, NodeUnavailable.
    """
    found = topic_rows.named(name=topic, actor=actor)
    access.require(actor, "manage", topic)

    def checked(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(what, done, total))

    held = archives.proven(archive, topic, say=checked)
    upto = _upto(found, held)
    planner = partial(purge_plan, upto=upto)
    return Run(actor=actor, planner=planner, dry_run=dry_run, say=progress).over([found], rest_s=rest_s)


def _upto(topic: TopicView, held: dict[int, list[Archived]]) -> dict[int, int]:
    """{queue: the offset up to which the archive holds all that is kept}. Raises Conflict."""
    ends = {}
    for queue in topic.queues:
        mine = held.get(queue.queue, [])
        identity = snapshot.node_by_id(queue.node_id).identity
        if any(one.identity != identity for one in mine):
            raise Conflict(
                f"Queue {queue.queue} in the archive belongs to another installation. Nothing was purged."
            )
        if mine:
            with node_pools.node(queue.node_id).reading() as session:
                head = queue_sql.read_head(session, queue=queue.queue)
            ends[queue.queue] = archives.covered(mine, head.low if head is not None else 0)
    return ends
