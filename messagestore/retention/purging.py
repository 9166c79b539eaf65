"""Purges: removes messages from the nodes that a verified archive holds.

Messages that an active group has not read stay, because groups read from nodes and not from
archives.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from messagestore.pool import node_pools
from messagestore.retention import archives
from messagestore.retention.cleaning import REST_S, Cleaned, CleaningRun, Say
from messagestore.retention.planning import purge_plan
from messagestore.sweeping import Progress
from messagestore.tables import queue_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import Conflict
from metadata.rules.rights import Right
from metadata.topics import topic_rows


def purge(
    *,
    topic: str,
    archive: Path,
    actor: Actor,
    dry_run: bool = False,
    rest_s: float = REST_S,
    progress: Say | None = None,
) -> list[Cleaned]:
    """Remove a topic's archived messages. Return the plan and the result of each queue.

    With `dry_run`, only plans are made. Needs the right `manage` on the topic. Every file
    of the archive is checked first. Raises Conflict if the archive is damaged or belongs to
    another installation, Invalid if it has no such topic, NotFound, NodeUnavailable.
    """
    view = topic_rows.find_topic(name=topic, actor=actor)
    access.require(actor, Right.MANAGE, topic)

    def report_check(text: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(text, done, total))

    archived = archives.proven(archive, topic, say=report_check)
    # queue → the offset up to which the archive holds all its messages
    upto = {}
    for queue in view.queues:
        spans = archived.get(queue.queue, [])
        identity = snapshot.node_by_id(queue.node_id).identity
        # Another installation may have queues of the same numbers, with other messages.
        if any(span.identity != identity for span in spans):
            raise Conflict(
                f"Queue {queue.queue} in the archive belongs to another installation. "
                "Nothing was purged."
            )
        if spans:
            with node_pools.node(queue.node_id).reading() as session:
                head = queue_sql.read_head(session, queue=queue.queue)
            upto[queue.queue] = archives.covered(spans, head.low if head is not None else 0)
    planner = partial(purge_plan, upto=upto)
    run = CleaningRun(actor=actor, planner=planner, dry_run=dry_run, say=progress)
    return run.clean_topics([view], rest_s=rest_s)
