"""A node lost its database: it goes on with a replica (`promote`), or with what was
restored (`adopt`).

Both may lack the last messages, and the groups may have read those. So no offset is given
twice: every head is set above anything that can have been served, the jump is declared as a
gap, and whoever stands in a gap is told. What went before is fenced:

1. metadata: the node is offline, under a new epoch
2. the old primary, if it answers: its heads are closed under that epoch, it becomes
read-only, its
   connections end; if it does not, every live worker of a broker has to say that it has let
   go of it
3. the new one takes what it still can, stops copying, gets heads, gaps, readers and the
epoch
4. metadata: the new address; brokers go on without a restart

Every step may be repeated; a crash leaves the node offline, and the same command begins
anew.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.nodes import encryption, promotion_rights
from messagestore.nodes.preflight import refusal
from messagestore.nodes.registry import check_server, check_way
from messagestore.nodes.replica_inspection import (
    JUMP,
    Lost,
    ReplicaInspection,
    delayed_loss,
    holds,
)
from messagestore.pool import session_pool
from messagestore.tables import (
    audit_sql,
    delayed_sql,
    node_sql,
    promotion_sql,
    queue_sql,
    reader_sql,
)
from messagestore.tables.shapes import ReaderKey
from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    Invalid,
    NodeUnavailable,
    Unavailable,
)
from metadata.grouping import grouped
from metadata.groups import subscribers
from metadata.membership import broadcast_instances
from metadata.nodes import failovers, node_rows
from metadata.nodes.failovers import OfflineNode

log = logging.getLogger(__name__)
PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome for a node. `gaps` counts queues with a new one; `messages` that were lost,
    at least.
    """

    node: str
    state: str
    epoch: int
    queues: int
    gaps: int
    messages: int
    lost: tuple[Lost, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    verb: str
    info: NodeInfo
    actor: Actor
    patience_s: float
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)

    def await_(self, happened: Callable[[], bool]) -> bool:
        """Wait, and return True if it happened within the time."""
        end = time.monotonic() + self.patience_s
        while not happened():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True


def _silent(text: str) -> None:
    """Say nothing."""


def promote(
    *,
    name: str,
    actor: Actor,
    host: str = "",
    port: int | None = None,
    tls: str | None = None,
    tls_ca: str | None = None,
    known_dead: bool = False,
    patience_s: float = PATIENCE_S,
    say: Callable[[str], None] = _silent,
) -> Outcome:
    """Move a node to its replica, or to host and port, with the same database and account.
    Needs `admin`.

    `tls`, `tls_ca`: encryption there; None: as it is. `known_dead`: the old primary is
    certainly off, so nobody is asked. Raises Invalid (node_refused), NotFound,
    NodeUnavailable before anything is changed; later Unavailable or Conflict, after which
    the node stays offline and the command is to be repeated.
    """
    info = found(name, actor)
    target = target_of(info, host=host, port=port, tls=tls, tls_ca=tls_ca)
    run = _Run("promote", info, actor, patience_s, say)
    with reached(target) as session:
        check(session, info=info, target=target)
        promotion_rights.require(session, target=target, verb=run.verb)
        begun = failovers.begin(name=name, verb=run.verb, actor=actor)
        say(f"node {name} is offline under epoch {begun.epoch}")
        old_heads = _fence(run, begun, known_dead=known_dead)
        _detach(run, session, old_heads, epoch=begun.epoch, known_dead=known_dead)
        address = {
            "host": target.host,
            "port": target.port,
            "tls": target.tls,
            "tls_ca": target.tls_ca,
        }
        if (target.host, target.port) == (info.replica_host, info.replica_port):
            address |= {"replica_host": "", "replica_port": None}
        inspection = ReplicaInspection.of(session, begun.node_id, old_heads)
        return _settle(run, session, inspection=inspection, begun=begun, address=address)


def adopt(
    *, name: str, actor: Actor, rows: str = "", say: Callable[[str], None] = _silent
) -> Outcome:
    """Go on with what is at a node's own address now: a restored backup, a replica that
    took over the address, or an empty database. Needs `admin`.

    `rows`: "keep" or "drop" the messages of queues that were made after the backup (see
    `leftovers`).
    Raises Invalid (node_refused), NotFound, NodeUnavailable, and Conflict (node_refused) if
    there are such messages and `rows` is empty; all before anything is changed.
    """
    info = found(name, actor)
    run = _Run("adopt", info, actor, 0.0, say)
    with session_pool.direct(info) as session:
        check(session, info=info, target=info)
        left = leftovers(session, info)
        if left and rows not in ("keep", "drop"):
            raise Conflict(leftovers_fault(info.name, left), code=Code.NODE_REFUSED)
        unknown = promotion_rights.require(session, target=info, verb=run.verb)
        begun = failovers.begin(name=name, verb=run.verb, actor=actor)
        if unknown:
            run.note(unknown)
        say(f"node {name} is offline under epoch {begun.epoch}")
        if info.engine == "mysql":
            _detach(run, session, None, epoch=begun.epoch, known_dead=True)
        node_sql.create_node_tables(session)
        _place_leftovers(run, session, left, epoch=begun.epoch, keep=rows == "keep")
        inspection = ReplicaInspection.of(session, begun.node_id, None)
        return _settle(run, session, inspection=inspection, begun=begun, address={})


def leftovers(session: Session, info: NodeInfo) -> dict[int, tuple[int, int]]:
    """Return {queue: (lowest offset, end)} of queues that have messages and no head row, or
    one with head 0.

    A run of the command that ended before it placed the head leaves such a row. Restoring a
    backup into a database leaves tables alone that the backup does not have: those of
    queues that were made after it. A head of 0 for such a queue would declare a gap over
    messages that are there.
    """
    # a database without the tables of a node has no messages
    with suppress(db_errors.Final):
        heads = queue_sql.read_heads(session, queues=None)
        tables = {*audit_sql.list_message_tables(session)}
        queues = [one.queue for one in failovers.list_queues(info.id)]
        missing = [queue for queue in queues if queue in tables and not heads.get(queue)]
        ends = {
            queue: audit_sql.read_offset_ends(session, queue=queue, first=0)
            for queue in missing
        }
        return {
            queue: (lowest, highest + 1)
            for queue, (lowest, highest) in ends.items()
            if lowest is not None and highest is not None
        }
    return {}


def leftovers_fault(name: str, left: Mapping[int, tuple[int, int]]) -> str:
    """Say that the choice between keeping and dropping messages is missing."""
    count = sum(end - lowest for lowest, end in left.values())
    return (
        f"Queues {', '.join(map(str, sorted(left)))} were made after the backup of node "
        f"{name}, and {count} "
        "messages of them are still in its database. To deliver them, run manage.py "
        "adopt_restored_node "
        f"{name} --rows keep; to delete them, --rows drop."
    )


def _place_leftovers(
    run: _Run,
    session: Session,
    left: Mapping[int, tuple[int, int]],
    *,
    epoch: int,
    keep: bool,
) -> None:
    """Give queues that have messages and no head row a head after the messages, or drop the
    messages.
    """
    for queue, (lowest, end) in sorted(left.items()):
        if not keep:
            queue_sql.drop_queue(session, queue=queue)
            run.note(
                f"{end - lowest} messages of queue {queue}, made after the backup, were dropped"
            )
            continue
        queue_sql.create_queue(session, queue=queue, node_epoch=epoch)
        queue_sql.set_queue_state(session, queue=queue, state="ro")
        promotion_sql.place_head(session, queue=queue, low=lowest, head=end)
        run.note(
            f"{end - lowest} messages of queue {queue}, made after the backup, were kept"
        )


def found(name: str, actor: Actor) -> NodeInfo:
    """The node as metadata has it now. Raises Forbidden, NotFound (node_not_found)."""
    access.require_everything(actor, name, what="node")
    snapshot.refresh()
    return snapshot.find_node(name)


def target_of(
    info: NodeInfo, *, host: str, port: int | None, tls: str | None, tls_ca: str | None
) -> NodeInfo:
    """The node at the address that it is to move to; None: encrypted as it is now. Raises
    Invalid.
    """
    if info.engine != "mysql":
        raise Invalid.field(
            "node", f"{info.name} is a file: restore it, then manage.py adopt_restored_node"
        )
    given = host or info.replica_host
    if not given:
        raise Invalid.field(
            "to", f"give HOST:PORT: metadata knows no replica of node {info.name}"
        )
    target = replace(
        info, host=given, port=port or (info.replica_port if not host else 0) or 3306
    )
    if (target.host, target.port) == (info.host, info.port or 3306):
        raise Invalid.field(
            "to", "is the node's present address; to keep it: manage.py adopt_restored_node"
        )
    if tls is None and tls_ca is None:
        return target
    kept = info.tls_ca if tls is None or tls == "verify" else ""
    target = replace(target, tls=tls or info.tls, tls_ca=kept if tls_ca is None else tls_ca)
    node_rows.check_tls(info.name, target.engine, mode=target.tls, ca=target.tls_ca)
    return target


@contextmanager
def reached(target: NodeInfo) -> Iterator[Session]:
    """A session on the new database. Raises NodeUnavailable, Invalid (node_refused) if TLS
    fails.
    """
    try:
        with session_pool.direct(target) as session:
            yield session
    except NodeUnavailable as error:
        if encryption.failure(error, target) is None:
            raise
        raise Invalid(refusal(error, target, remedy=""), code=Code.NODE_REFUSED) from error


def check(session: Session, *, info: NodeInfo, target: NodeInfo) -> None:
    """Raise Invalid (node_refused) unless the database may stand for the node."""
    if target.engine == "mysql":
        check_way(session, target, unsafe=False)
        facts = node_sql.read_server_facts(session)._replace(read_only=False)
        check_server(facts, target, unsafe=False)
    identity = promotion_sql.NodeContents("", {})
    with suppress(db_errors.Final):  # no such table: perhaps empty
        identity = promotion_sql.read_contents(session)
    if info.identity and identity.identity not in ("", info.identity):
        what = f"The database at {target.host or target.database} has the data of another node."
        raise Invalid(what, code=Code.NODE_REFUSED)
    if info.identity and not identity.identity and identity.heads:
        what = (
            f"The database at {target.host or target.database} has data, but not that "
            f"of node {info.name}."
        )
        raise Invalid(what, code=Code.NODE_REFUSED)


def _fence(run: _Run, begun: OfflineNode, *, known_dead: bool) -> dict[int, int] | None:
    """Make sure that nobody writes to the old primary; return its last heads, None if it
    does not answer.
    """
    try:
        with session_pool.direct(run.info) as session:
            promotion_sql.fence_heads(session, node_epoch=begun.epoch)
            heads = queue_sql.read_heads(session, queues=None)
            _lock(run, session)
        run.say(
            "the old primary is fenced: closed under the new epoch, its connections ended"
        )
        return heads
    except (NodeUnavailable, db_errors.Final) as error:
        run.say(f"the old primary cannot be fenced: {error.detail}")
    if known_dead:
        run.note(
            "nobody was asked whether the old primary is still written to: it is known to be dead"
        )
        return None
    late: list[str] = []

    def nobody_is_behind() -> bool:
        late[:] = snapshot_acks.find_late_workers(begun.change)
        return not late

    if not run.await_(nobody_is_behind):
        raise Unavailable(
            f"These brokers may still write to the old primary: {', '.join(late)}. Stop "
            "them, or turn "
            f"off the old primary and add --i-know-it-is-dead. Node {run.info.name} stays "
            "offline until then."
        )
    run.say("no live broker uses the old primary any more")
    return None


def _lock(run: _Run, session: Session) -> None:
    """Read-only and without connections, as far as the account may; the heads are closed
    already.
    """
    assert isinstance(session, MySqlSession)  # noqa: S101 - only servers are promoted
    try:
        promotion_sql.forbid_writes(session)
    except (db_errors.Final, db_errors.RolledBack) as error:
        run.note(
            f"the old primary is not read-only, only its queues are closed: {error.detail}"
        )
    for connection in promotion_sql.list_connections(session):
        with suppress(CatmqError):  # it ended by itself, or is not ours to end
            promotion_sql.kill_connection(session, connection=connection)


def _detach(
    run: _Run,
    session: Session,
    old_heads: Mapping[int, int] | None,
    *,
    epoch: int,
    known_dead: bool,
) -> None:
    """Have a replica apply what it got (all of it, if the old primary answers), then make
    it a primary.
    """
    try:
        if promotion_sql.read_replication(session).threads:
            _catch_up(run, session, old_heads, epoch)
            promotion_sql.stop_replicating(session)
            run.say("the replica has stopped copying")
        if old_heads is not None and not known_dead and not holds(session, old_heads):
            raise Conflict(
                "The old primary answers and has messages that the replica lacks. Repair "
                "the replication and "
                "repeat; or lose them with --i-know-it-is-dead; or keep the old primary "
                "with manage.py "
                f"adopt_restored_node. Node {run.info.name} stays offline until then.",
                code=Code.NODE_REFUSED,
            )
        if node_sql.read_server_facts(session).read_only:
            promotion_sql.allow_writes(session)
    except db_errors.Final as error:
        raise Conflict(
            f"The account may not make the replica a primary ({error.detail}). On the "
            "replica, run STOP "
            "REPLICA; SET GLOBAL read_only = 0; then repeat this command. "
            f"Node {run.info.name} stays offline until then.",
            code=Code.NODE_REFUSED,
        ) from error


def _catch_up(
    run: _Run, session: Session, old_heads: Mapping[int, int] | None, epoch: int
) -> None:
    """Wait for all that the old primary ever did, its fence last of all; or for what has
    arrived.
    """
    if old_heads is not None and run.await_(
        lambda: holds(session, old_heads) and _is_fenced(session, [*old_heads], epoch)
    ):
        run.say("the replica holds everything")
        return
    promotion_sql.stop_receiving(session)
    if not run.await_(lambda: promotion_sql.read_replication(session).caught_up):
        run.note("the replica had not applied all it had received")


def _is_fenced(session: Session, queues: Sequence[int], epoch: int) -> bool:
    """Return True if the heads carry the epoch; they all got it in one transaction."""
    head = queue_sql.read_head(session, queue=queues[0]) if queues else None
    return not queues or (head is not None and head.node_epoch == epoch)


def _settle(
    run: _Run,
    session: Session,
    *,
    inspection: ReplicaInspection,
    begun: OfflineNode,
    address: Mapping[str, object],
) -> Outcome:
    """Give the new database heads, gaps, readers and the epoch; then metadata its address."""
    raised, lost = inspection.raised(), inspection.lost()
    missing = sum(inspection.tail(queue) for queue in inspection.queues)
    promotion_sql.fence_heads(session, node_epoch=begun.epoch)
    for queue in inspection.queues:
        if queue.queue not in inspection.heads:
            queue_sql.create_queue(session, queue=queue.queue, node_epoch=begun.epoch)
            queue_sql.set_queue_state(session, queue=queue.queue, state="ro")
    cause = f"{run.verb}, node epoch {begun.epoch}"
    promotion_sql.raise_heads(session, heads=sorted(raised.items()), cause=cause)
    _place_readers(session, inspection)
    identity = run.info.identity or str(uuid.uuid4())
    promotion_sql.write_identity(session, identity=identity)
    if begun.state_before != "read_only":
        queue_sql.open_queues(session, queues=node_rows.open_queues(begun.node_id))
    counts, seen = (
        delayed_sql.read_counts(session),
        failovers.read_delayed_counts(begun.node_id),
    )
    delayed = 0 if inspection.complete else seen.lost(given=counts.given)
    if not inspection.complete:
        # A lost delayed message may still be asked for, or recalled, by its id. No other
        # one gets it.
        given = max(seen.given, counts.given) + JUMP
        delayed_sql.raise_ids(session, above=given)
        counts = counts._replace(given=given)
    if delayed:
        run.note(delayed_loss(delayed))
    report: dict[str, object] = {
        "gaps": len(raised),
        "messages_lost": missing,
        "delayed_lost": delayed,
    }
    report |= {f"lost {one.group}/{one.topic}/{one.queue}": one.messages for one in lost}
    state = failovers.finish(
        begun=begun,
        verb=run.verb,
        address=address,
        identity=identity,
        heads=raised,
        delayed=counts,
        report=report,
        actor=run.actor,
    )
    sizes = (len(inspection.queues), len(raised), missing)
    return Outcome(run.info.name, state, begun.epoch, *sizes, lost, tuple(run.notes))


def _place_readers(session: Session, inspection: ReplicaInspection) -> None:
    """Reader rows where they are missing, and none below the epoch that metadata has given."""
    for topic_id, mine in grouped(
        (one.topic_id, one.queue) for one in inspection.queues
    ).items():
        for reading in subscribers.active_subscriptions(topic_id):
            reader_sql.insert_readers(
                session,
                group_id=reading.group_id,
                queues=mine,
                epoch=reading.base_epoch,
                latest=False,
                instances=broadcast_instances.reader_names(reading.group_id),
            )
    epochs = [
        (ReaderKey(one.group_id, one.queue, one.reader), one.epoch)
        for one in inspection.readers
    ]
    promotion_sql.raise_readers(session, epochs=epochs)
