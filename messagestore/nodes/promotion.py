"""Replacing a node's lost database: by a replica (`promote`) or a restored backup (`adopt`).

Both may lack the last messages, and groups may have read those. So no offset is given
twice: every head is set above anything that can have been served, the jump is declared as a
gap, and a reader inside a gap is notified. The old primary is fenced first:

1. Metadata: the node goes offline, under a new epoch.
2. The old primary, if it answers: its heads are closed under that epoch, it becomes
   read-only, its connections end. If it does not answer, every live broker worker has to
   confirm that it has let go.
3. The new database applies what it still can and stops copying. It gets heads, gaps,
   readers and the epoch.
4. Metadata: the new address. Brokers continue without a restart.

Every step may be repeated. After a crash the node stays offline, and the same command
starts again.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from msgspec import Struct

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.nodes import encryption, promotion_rights
from messagestore.nodes.preflight import describe_refusal
from messagestore.nodes.registry import check_path, check_server
from messagestore.nodes.replica_inspection import (
    JUMP,
    Lost,
    ReplicaInspection,
    delayed_loss,
    holds,
)
from messagestore.pool import session_pool, writers
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
from metadata.rules.addresses import Address, is_list, parse_addresses
from metadata.rules.nodes import Engine, NodeState
from metadata.rules.tls import TlsMode

log = logging.getLogger(__name__)
PATIENCE_S = 30.0
_CHECK_EVERY_S = 0.2


class Outcome(Struct, frozen=True):
    """Result for a node.

    `gaps`: queues with a new declared gap. `messages`: how many were lost, at least.
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
    """A promotion or adoption in progress; `say` reports progress to the user."""

    verb: str
    info: NodeInfo
    actor: Actor
    patience_s: float
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Report something that the result keeps as well."""
        self.notes.append(text)
        self.say(text)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition. Returns False if it is not met within `patience_s`."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_CHECK_EVERY_S)
        return True


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
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Move a node to its replica, or to host and port, with the same database and account.

    Needs `admin`. `tls` and `tls_ca` change the encryption, None keeps it. `known_dead`:
    the old primary is certainly off, so no broker has to confirm.

    Raises Invalid (node_refused), NotFound and NodeUnavailable before anything is changed.
    Later it raises Unavailable or Conflict; the node stays offline then, and the command
    has to be repeated.
    """
    info = find_node(name, actor)
    target = choose_target(info, host=host, port=port, tls=tls, tls_ca=tls_ca)
    run = _Run("promote", info, actor, patience_s, say)
    with open_target(target) as session:
        check_target(session, info=info, target=target)
        promotion_rights.require(session, target=target, verb=run.verb)
        offline_node = failovers.begin(name=name, verb=run.verb, actor=actor)
        say(f"node {name} is offline under epoch {offline_node.epoch}")
        # From here on brokers refuse the node: its epoch is new and it is offline.
        old_heads = _fence(run, offline_node, known_dead=known_dead)
        _make_primary(
            run, session, old_heads, epoch=offline_node.epoch, known_dead=known_dead
        )
        address: dict[str, object] = {"tls": target.tls, "tls_ca": target.tls_ca}
        place = Address(target.host, target.port)
        # A list keeps its servers: only the one that is written to changes.
        if is_list(info.host) and place in parse_addresses(info.host, info.port):
            address |= {"writer": str(place)}
        else:
            address |= {"host": target.host, "port": target.port, "writer": ""}
        # The former replica is the primary now; the node has no replica any more.
        if (target.host, target.port) == (info.replica_host, info.replica_port):
            address |= {"replica_host": "", "replica_port": None}
        inspection = ReplicaInspection.of(session, offline_node.node_id, old_heads)
        return _complete(
            run, session, inspection=inspection, offline_node=offline_node, address=address
        )


def adopt(
    *, name: str, actor: Actor, rows: str = "", say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Continue with the database that is now at a node's own address. Needs `admin`.

    It is a restored backup, a replica that took over the address, or an empty database.
    `rows`: "keep" or "drop" the messages of queues that were made after the backup (see
    `leftovers`).

    Raises Invalid (node_refused) and NotFound, and Conflict (node_refused) if there are
    such messages and `rows` is empty; all before anything is changed.
    """
    info = find_node(name, actor)
    run = _Run("adopt", info, actor, 0.0, say)
    with session_pool.direct(info) as session:
        check_target(session, info=info, target=info)
        messages_left = leftovers(session, info)
        # Ask before anything changes: neither choice can be undone.
        if messages_left and rows not in ("keep", "drop"):
            raise Conflict(
                leftovers_fault(info.name, messages_left), code=Code.NODE_REFUSED
            )
        unchecked = promotion_rights.require(session, target=info, verb=run.verb)
        offline_node = failovers.begin(name=name, verb=run.verb, actor=actor)
        if unchecked:
            run.note(unchecked)
        say(f"node {name} is offline under epoch {offline_node.epoch}")
        if info.engine == Engine.MYSQL:
            _make_primary(run, session, None, epoch=offline_node.epoch, known_dead=True)
        node_sql.create_node_tables(session)
        for queue, (lowest, end) in sorted(messages_left.items()):
            text = f"{end - lowest} messages of queue {queue}, made after the backup, were"
            if rows == "drop":
                queue_sql.drop_queue(session, queue=queue)
                run.note(f"{text} dropped")
                continue
            queue_sql.create_queue(session, queue=queue, node_epoch=offline_node.epoch)
            # Closed until `_complete` opens all queues of the node.
            queue_sql.set_queue_state(session, queue=queue, state="ro")
            promotion_sql.place_head(session, queue=queue, low=lowest, head=end)
            run.note(f"{text} kept")
        inspection = ReplicaInspection.of(session, offline_node.node_id, None)
        return _complete(
            run, session, inspection=inspection, offline_node=offline_node, address={}
        )


def leftovers(session: Session, info: NodeInfo) -> dict[int, tuple[int, int]]:
    """Return {queue: (lowest offset, end)} of queues that have messages, but no head or
    head 0.

    Restoring a backup keeps tables that the backup does not have: those of queues that were
    made after it. A head of 0 for them would declare a gap over existing messages. A run
    that ended before it placed the head leaves such a row as well.
    """
    # A database without a node's tables has no messages.
    with suppress(db_errors.Final):
        heads = queue_sql.read_heads(session, queues=None)
        tables = {*audit_sql.list_message_tables(session)}
        queues = [node_queue.queue for node_queue in failovers.list_queues(info.id)]
        headless_queues = [
            queue for queue in queues if queue in tables and not heads.get(queue)
        ]
        ends = {
            queue: audit_sql.read_offset_ends(session, queue=queue, first=0)
            for queue in headless_queues
        }
        return {
            queue: (lowest, highest + 1)
            for queue, (lowest, highest) in ends.items()
            if lowest is not None and highest is not None
        }
    return {}


def leftovers_fault(name: str, messages_left: Mapping[int, tuple[int, int]]) -> str:
    count = sum(end - lowest for lowest, end in messages_left.values())
    return (
        f"Queues {', '.join(map(str, sorted(messages_left)))} were made after the backup of node "
        f"{name}, and {count} "
        "messages of them are still in its database. To deliver them, run manage.py "
        "adopt_restored_node "
        f"{name} --rows keep; to delete them, --rows drop."
    )


def find_node(name: str, actor: Actor) -> NodeInfo:
    """Return the node by fresh metadata. Raises Forbidden, NotFound (node_not_found)."""
    access.require_everything(actor, name, what="node")
    snapshot.refresh()
    return snapshot.find_node(name)


def choose_target(
    info: NodeInfo, *, host: str, port: int | None, tls: str | None, tls_ca: str | None
) -> NodeInfo:
    """Return the node at the address that it is to move to. Raises Invalid.

    `tls` and `tls_ca` keep the present encryption if both are None.
    """
    if info.engine != Engine.MYSQL:
        raise Invalid.field(
            "node", f"{info.name} is a file: restore it, then manage.py adopt_restored_node"
        )
    target_host = host or info.replica_host
    if not target_host:
        raise Invalid.field(
            "to", f"give HOST:PORT: metadata knows no replica of node {info.name}"
        )
    if is_list(target_host):
        raise Invalid.field("to", f"name one of the replicas: {target_host}")
    target = replace(
        info, host=target_host, port=port or (info.replica_port if not host else 0) or 3306
    )
    present = writers.at_writer(info)
    if (target.host, target.port) == (present.host, present.port or 3306):
        raise Invalid.field(
            "to", "is the node's present address; to keep it: manage.py adopt_restored_node"
        )
    if tls is None and tls_ca is None:
        return target
    default_ca = info.tls_ca if tls is None or tls == TlsMode.VERIFY else ""
    target = replace(
        target, tls=tls or info.tls, tls_ca=default_ca if tls_ca is None else tls_ca
    )
    node_rows.check_tls(info.name, target.engine, mode=target.tls, ca=target.tls_ca)
    return target


@contextmanager
def open_target(target: NodeInfo) -> Iterator[Session]:
    """Return a session on the new database.

    Raises NodeUnavailable, and Invalid (node_refused) if TLS fails.
    """
    try:
        with session_pool.direct(target) as session:
            yield session
    except NodeUnavailable as error:
        if encryption.explain_failure(error, target) is None:
            raise
        raise Invalid(
            describe_refusal(error, target, remedy=""), code=Code.NODE_REFUSED
        ) from error


def check_target(session: Session, *, info: NodeInfo, target: NodeInfo) -> None:
    """Raise Invalid (node_refused) unless the database may replace the node's."""
    if target.engine == Engine.MYSQL:
        check_path(session, target, unsafe=False)
        # A replica is read-only until it is promoted.
        facts = node_sql.read_server_facts(session)._replace(read_only=False)
        check_server(facts, target, unsafe=False)
    contents = promotion_sql.NodeContents("", {})
    with suppress(db_errors.Final):  # no such table: the database may be empty
        contents = promotion_sql.read_contents(session)
    if info.identity and contents.identity not in ("", info.identity):
        text = f"The database at {target.host or target.database} has the data of another node."
        raise Invalid(text, code=Code.NODE_REFUSED)
    if info.identity and not contents.identity and contents.heads:
        text = (
            f"The database at {target.host or target.database} has data, but not that "
            f"of node {info.name}."
        )
        raise Invalid(text, code=Code.NODE_REFUSED)


def _fence(
    run: _Run, offline_node: OfflineNode, *, known_dead: bool
) -> dict[int, int] | None:
    """Make sure that no broker writes to the old primary.

    Returns its last heads, None if it does not answer. Raises Unavailable if a broker did
    not confirm in time.
    """
    try:
        # The server of a list that was written to, even if it is read-only by now.
        with session_pool.direct(writers.at_writer(run.info)) as session:
            promotion_sql.fence_heads(session, node_epoch=offline_node.epoch)
            heads = queue_sql.read_heads(session, queues=None)
            # The heads are closed, so no message can follow those that were read here. The
            # rest is a second fence, as far as the account may set it up.
            assert isinstance(session, MySqlSession)  # noqa: S101 - only servers are promoted
            try:
                promotion_sql.forbid_writes(session)
            except (db_errors.Final, db_errors.RolledBack) as error:
                run.note(
                    "the old primary is not read-only, only its queues are closed: "
                    f"{error.detail}"
                )
            for connection in promotion_sql.list_connections(session):
                with suppress(CatmqError):  # it has ended already, or the right is missing
                    promotion_sql.kill_connection(session, connection=connection)
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
    late_workers: list[str] = []

    # A broker that has seen this change no longer uses the node.
    def all_confirmed() -> bool:
        late_workers[:] = snapshot_acks.find_late_workers(offline_node.change)
        return not late_workers

    if not run.wait_until(all_confirmed):
        raise Unavailable(
            f"These brokers may still write to the old primary: {', '.join(late_workers)}. Stop "
            "them, or turn "
            f"off the old primary and add --i-know-it-is-dead. Node {run.info.name} stays "
            "offline until then."
        )
    run.say("no live broker uses the old primary any more")
    return None


def _make_primary(
    run: _Run,
    session: Session,
    old_heads: Mapping[int, int] | None,
    *,
    epoch: int,
    known_dead: bool,
) -> None:
    """Make a replica a primary, after it has applied everything that the old primary did.

    If the old primary does not answer, wait only for the changes that the replica has
    received.
    """

    def has_everything() -> bool:
        if old_heads is None or not holds(session, old_heads):
            return False
        # The fence was the last write of the old primary, and set all heads in a single
        # transaction, so any head stands for all.
        queue = next(iter(old_heads), None)
        head = queue_sql.read_head(session, queue=queue) if queue is not None else None
        return queue is None or (head is not None and head.node_epoch == epoch)

    try:
        if promotion_sql.read_replication(session).threads:
            if old_heads is not None and run.wait_until(has_everything):
                run.say("the replica holds everything")
            else:
                promotion_sql.stop_receiving(session)
                if not run.wait_until(
                    lambda: promotion_sql.read_replication(session).caught_up
                ):
                    run.note("the replica had not applied all it had received")
            promotion_sql.stop_replicating(session)
            run.say("the replica has stopped copying")
        # The old primary still has the missing messages, so losing them needs a decision.
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


def _complete(
    run: _Run,
    session: Session,
    *,
    inspection: ReplicaInspection,
    offline_node: OfflineNode,
    address: Mapping[str, object],
) -> Outcome:
    """Write heads, gaps, readers and epoch to the new database, then metadata."""
    # All figures are computed before the heads change.
    raised, lost = inspection.raised(), inspection.lost()
    lost_messages = sum(inspection.tail(queue) for queue in inspection.queues)
    promotion_sql.fence_heads(session, node_epoch=offline_node.epoch)
    for queue in inspection.queues:
        if queue.queue not in inspection.heads:
            queue_sql.create_queue(
                session, queue=queue.queue, node_epoch=offline_node.epoch
            )
            queue_sql.set_queue_state(session, queue=queue.queue, state="ro")
    cause = f"{run.verb}, node epoch {offline_node.epoch}"
    promotion_sql.raise_heads(session, heads=sorted(raised.items()), cause=cause)
    # Missing reader rows are created, and epochs below those that metadata has given raised.
    for topic_id, queues in grouped(
        (queue.topic_id, queue.queue) for queue in inspection.queues
    ).items():
        for subscription in subscribers.active_subscriptions(topic_id):
            reader_sql.insert_readers(
                session,
                group_id=subscription.group_id,
                queues=queues,
                epoch=subscription.base_epoch,
                latest=False,
                instances=broadcast_instances.reader_names(subscription.group_id),
            )
    epochs = [
        (ReaderKey(reader.group_id, reader.queue, reader.reader), reader.epoch)
        for reader in inspection.readers
    ]
    promotion_sql.raise_readers(session, epochs=epochs)
    # Nodes that were registered by early releases have no identity yet.
    identity = run.info.identity or str(uuid.uuid4())
    promotion_sql.write_identity(session, identity=identity)
    # Last on the new database: no write may begin before heads and epoch are right.
    if offline_node.state_before != NodeState.READ_ONLY:
        queue_sql.open_queues(session, queues=node_rows.open_queues(offline_node.node_id))
    counts, recorded = (
        delayed_sql.read_counts(session),
        failovers.read_delayed_counts(offline_node.node_id),
    )
    delayed = 0 if inspection.complete else recorded.lost(given=counts.given)
    if not inspection.complete:
        # A client may still ask for a lost delayed message, or recall it, by its id. So no
        # other message gets that id.
        last_id = max(recorded.given, counts.given) + JUMP
        delayed_sql.raise_ids(session, above=last_id)
        counts = counts._replace(given=last_id)
    if delayed:
        run.note(delayed_loss(delayed))
    report: dict[str, object] = {
        "gaps": len(raised),
        "messages_lost": lost_messages,
        "delayed_lost": delayed,
    }
    report |= {
        f"lost {loss.group}/{loss.topic}/{loss.queue}": loss.messages for loss in lost
    }
    state = failovers.finish(
        begun=offline_node,
        verb=run.verb,
        address=address,
        identity=identity,
        heads=raised,
        delayed=counts,
        report=report,
        actor=run.actor,
    )
    counts_of_queues = (len(inspection.queues), len(raised), lost_messages)
    return Outcome(
        run.info.name, state, offline_node.epoch, *counts_of_queues, lost, tuple(run.notes)
    )
