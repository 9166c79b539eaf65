"""A share group on real tables: topic `orders`, group `mails`, and its members, without
HTTP.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from messagestore.engine.messages import ROW_OFFSET, NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.shares import finishing, known_queues, leasing, upkeep
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import GrantReport, ReportOutcome
from messagestore.shares.leasing import LeaseResult, MessageRequest
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
    """Makes the topic; the ids of its queues."""
    state = topics.create(name="orders", queues=queues, actor=ME)
    snapshot.refresh()
    return [one.queue.queue for one in state.queues]


def member(name: str = "one", **settings: Any) -> ConsumerId:
    """A member of the group, which it makes if it has to."""
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
    """Sends to the topic."""
    messages = [NewMessage(body=body.encode(), **more) for body in bodies]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def asked(who: ConsumerId, **wanted: Any) -> LeaseResult:
    """The whole answer to a member that asks for runs."""
    given = {"topics": (), "max_messages": 100, "max_bytes": 1 << 20, **wanted}
    return leasing.lease(consumer=who, request=MessageRequest(**given))


def lease(who: ConsumerId, **wanted: Any) -> list[Leased]:
    """The runs that a member gets."""
    return asked(who, **wanted).runs


def offsets(runs: list[Leased]) -> list[int]:
    """The offsets of the messages of some runs."""
    return [row[ROW_OFFSET] for one in runs for row in one.rows]


def report(who: ConsumerId, one: Leased, **said: Any) -> str:
    """The state of a report on a run."""
    done = GrantReport(one.queue, one.run.first, one.run.grant.text, **said)
    (recorded,) = record(who, done)
    return recorded.state


def record(who: ConsumerId, *reports: GrantReport) -> list[ReportOutcome]:
    """What comes of some reports."""
    return finishing.record(consumer=who, group=leasing.find_group(who), reports=reports)


def end_leases(one: Leased) -> None:
    """Lets the lease of a run be over, as if its time had passed."""
    with node_pools.node_of(one.queue).writing() as session:
        run_sql.end_leases(
            session,
            group_id=snapshot.find_group("mails").id,
            queue=one.queue,
            first=one.run.first,
        )
    forget()


def forget() -> None:
    """Knows nothing of the queues any more, like another process, or a second later."""
    known_queues._known.clear()
    known_queues._missing.clear()


def runs(queue: int) -> list[Run]:
    """The runs of the group as the node has them."""
    group_id = snapshot.find_group("mails").id
    with node_pools.node_of(queue).reading() as session:
        return [
            one.run
            for one in run_sql.list_runs(
                session, group_id=group_id, queues=[queue], most=10_000
            )
        ]


def committed(queue: int) -> int | None:
    """The committed offset, brought up to date."""
    upkeep.commit_touched()
    group_id = snapshot.find_group("mails").id
    with node_pools.node_of(queue).reading() as session:
        return reader_sql.read_positions(session, group_id=group_id, queues=[queue])[
            queue
        ].committed
