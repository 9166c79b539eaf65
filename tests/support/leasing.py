"""A share group on real tables: topic `orders`, group `mails` and its members, without
HTTP.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from messagestore.engine.messages import ROW_OFFSET, NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.shares import finishing, known_queues, queue_choice, upkeep
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import GrantReport, ReportOutcome
from messagestore.shares.queue_choice import LeaseResult, MessageRequest
from messagestore.tables import reader_sql
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Run
from messagestore.topology import membership, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId

ME = actors.command("test")


def made(*, queues: int = 1) -> list[int]:
    """Create the topic and return the ids of its queues."""
    state = topics.create(name="orders", queues=queues, actor=ME)
    snapshot.refresh()
    return [topic_queue.queue.queue for topic_queue in state.queues]


def member(name: str = "one", **settings: Any) -> ConsumerId:
    """Join the group, which is created if necessary."""
    joined = membership.join(
        group="mails",
        name=name,
        incarnation=str(uuid4()),
        topics=["orders"],
        actor=ME,
        mode="share",
        **settings,
    )
    snapshot.refresh()
    return consumer_ids.check(joined.consumer_id)


def send(*bodies: str, **more: Any) -> None:
    """Send messages to the topic."""
    messages = [NewMessage(body=body.encode(), **more) for body in bodies]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def asked(who: ConsumerId, **wanted: Any) -> LeaseResult:
    """Ask for runs as a member, and return the whole answer."""
    arguments = {"topics": (), "max_messages": 100, "max_bytes": 1 << 20, **wanted}
    return queue_choice.lease(consumer=who, request=MessageRequest(**arguments))


def lease(who: ConsumerId, **wanted: Any) -> list[Leased]:
    """Return the runs that a member gets."""
    return asked(who, **wanted).runs


def offsets(runs: list[Leased]) -> list[int]:
    """Return the offsets of the messages of runs."""
    return [row[ROW_OFFSET] for leased in runs for row in leased.rows]


def report(who: ConsumerId, leased: Leased, **said: Any) -> str:
    """Report on a run and return the resulting state."""
    done = GrantReport(leased.queue, leased.run.first, leased.run.grant.text, **said)
    (recorded,) = record(who, done)
    return recorded.state


def record(who: ConsumerId, *reports: GrantReport) -> list[ReportOutcome]:
    """Report on several runs and return the results."""
    return finishing.record(
        consumer=who, group=queue_choice.find_group(who), reports=reports
    )


def end_leases(leased: Leased) -> None:
    """Expire the lease of a run, as if its time had passed."""
    with node_pools.node_of(leased.queue).writing() as session:
        run_sql.end_leases(
            session,
            group_id=snapshot.find_group("mails").id,
            queue=leased.queue,
            first=leased.run.first,
        )
    forget()


def forget() -> None:
    """Drop the cached state of queues, as in another process or a second later."""
    known_queues._known.clear()
    known_queues._missing.clear()


def runs(queue: int) -> list[Run]:
    """Return the runs of the group from the node."""
    group_id = snapshot.find_group("mails").id
    with node_pools.node_of(queue).reading() as session:
        return [
            queue_run.run
            for queue_run in run_sql.list_runs(
                session, group_id=group_id, queues=[queue], most=10_000
            )
        ]


def committed(queue: int) -> int | None:
    """Return the committed offset, after committing finished messages."""
    upkeep.commit_touched()
    group_id = snapshot.find_group("mails").id
    with node_pools.node_of(queue).reading() as session:
        return reader_sql.read_positions(session, group_id=group_id, queues=[queue])[
            queue
        ].committed
