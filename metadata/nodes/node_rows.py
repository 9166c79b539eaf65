"""Nodes: the registry of databases that hold message tables. No function returns a password
that brokers use.

A node holds messages of all teams, so all functions here need `admin` on everything.
`messagestore.nodes.registry` combines them with the work on the node's database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import Count
from msgspec import Struct

from metadata import certificates
from metadata.actors import Actor
from metadata.brokers import fingerprints
from metadata.config import config
from metadata.db import access, audit, paging, rows
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.paging import Page, Window
from metadata.db.secrets import decrypt, encrypt
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid
from metadata.models import DbNode, Queue, Topic
from metadata.rules import tls
from metadata.rules.addresses import MAX_TEXT, check_hosts
from metadata.rules.audit_verbs import Verb
from metadata.rules.nodes import Engine, NodeKind, NodeState
from metadata.rules.rights import Right
from metadata.rules.setting_types import Choice, Text, Whole
from metadata.rules.settings import NODE, Fields, check_settings
from metadata.rules.tls import TlsMode
from metadata.rules.topics.names import check_confirmed, check_name
from metadata.rules.topics.states import QueueState, TopicState

# Files of the server in the data directory, where SQLite nodes are, too.
OWN_FILES = (
    "metadata.sqlite3",
    "jobs.sqlite3",
    "secret.key",
    "encryption.key",
    "credentials.env",
)
CREATE: Fields = {
    "kind": Choice(dict.fromkeys(NodeKind, "")),
    "engine": Choice(dict.fromkeys(Engine, "")),
    "host": Text(MAX_TEXT, check=check_hosts),
    "port": Whole(0, 65_535, null="none"),
    "database": Text(1000),
    "username": Text(200),
    **{name: NODE[name] for name in ("dedicated", "capacity_gb", "tls", "tls_ca")},
}


class NodeView(Struct, frozen=True):
    """A node without passwords. `queues` includes queues of deleted topics.

    `replica_*` is the address to which pulls go while the node is away. `quarantined` is
    the reason why no broker serves it, '' if brokers do. `writer` is the server of several
    that brokers write to, '' for a single server.
    """

    id: int
    name: str
    kind: str
    engine: str
    host: str
    port: int | None
    database: str
    username: str
    state: str
    dedicated: bool
    epoch: int
    capacity_gb: int | None
    disk: str
    created_at_ms: int
    queues: int
    replica_host: str
    replica_port: int | None
    tls: str
    tls_ca: str
    reader_username: str
    quarantined: str
    writer: str


@dataclass(frozen=True, slots=True)
class ReaderAccount:
    """The read-only account of a node. Both fields are empty if it has none."""

    username: str
    password: str = field(repr=False)


def check_new(*, name: str, actor: Actor, **columns: object) -> dict[str, Any]:
    """Return the checked columns for create(). Needs `admin`. Raises Invalid,
    Conflict(already_exists).
    """
    check_name("node", name)
    access.require_everything(actor, name, what="node")
    values = check_settings(CREATE, columns)
    if not values["database"] or (
        values["engine"] == Engine.MYSQL and not values.get("host")
    ):
        raise Invalid.field(
            "host" if values["database"] else "database", "must not be empty"
        )
    if values["engine"] == Engine.SQLITE:
        _check_path(values["database"])
    check_tls(
        name,
        values["engine"],
        mode=values.get("tls", TlsMode.OFF),
        ca=values.get("tls_ca", ""),
    )
    # Only for an early error: the unique index decides when create() inserts the row.
    with reachable():
        if DbNode.objects.filter(name=name).exists():
            raise Conflict(f"Node {name} exists already.", code=Code.ALREADY_EXISTS)
    return values


def _check_path(database: str) -> None:
    """Raise Invalid unless the file of a SQLite node is in an allowed directory, and is no
    file of the server itself.
    """
    # Resolved, so that neither `..` nor a symbolic link leads out of the directories.
    try:
        path = Path(config.data_dir, database).resolve()
    # NUL character, name too long, cycle of symbolic links
    except (ValueError, OSError, RuntimeError):
        raise Invalid.field("database", "is not a file path") from None
    allowed = [config.data_dir, *map(Path, config.sqlite_dirs)]
    if not any(directory.resolve() in path.parents for directory in allowed):
        problem = (
            f"{path} does not lie below the data directory, {config.data_dir}: choose a "
            "file there"
        )
        raise Invalid.field(
            "database", f"{problem}, or name its directory in CATMQ_SQLITE_DIRS"
        )
    if path.parent == config.data_dir.resolve() and path.name in OWN_FILES:
        raise Invalid.field(
            "database", f"{path} is a file of the server itself: choose another"
        )


def find_name_by_identity(identity: str) -> str | None:
    """Return the name of the node whose database has this identity, None if none has."""
    with reachable():
        return (
            DbNode.objects.filter(identity=identity).values_list("name", flat=True).first()
        )


@transactional
def create(
    *,
    name: str,
    actor: Actor,
    password: str = "",
    identity: str = "",
    writer: str = "",
    **columns: object,
) -> NodeView:
    """Create a read-write node with `columns` of CREATE. Needs `admin`.

    `writer` is the server of several that is written to.

    `messagestore.nodes.registry.register` has checked before that it can serve, and has
    written `identity` into its database. Raises Invalid, Conflict(already_exists).
    """
    values = check_new(name=name, actor=actor, **columns)
    new_values = {
        "password_encrypted": _encrypt(password),
        "created_at": database_now(),
        "identity": identity,
        "writer": writer,
    }
    row = rows.create(DbNode.objects.all(), "Node", name=name, **new_values, **values)
    audit.record(actor=actor, verb=Verb.CREATE, kind="node", name=name, after=values)
    record_change("node", row.pk)
    return _view(row)


def check_update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """Return the node as it is, if update() would accept the settings. Needs `admin`.
    Raises Invalid, NotFound.
    """
    node = find_node(name=name, actor=actor)
    check_settings(NODE, settings)
    if settings.get("host", node.host) != node.host and (
        node.engine != Engine.MYSQL or not settings["host"]
    ):
        raise Invalid.field("host", "only a server has an address, and it needs one")
    if settings.get("replica_host") and node.engine != Engine.MYSQL:
        raise Invalid.field("replica_host", f"node {name} is a file, which has no replica")
    if settings.keys() & {"tls", "tls_ca"}:
        mode, ca = settings.get("tls", node.tls), settings.get("tls_ca", node.tls_ca)
        check_tls(name, node.engine, mode=mode, ca=ca)
    return node


def check_tls(name: str, engine: str, *, mode: str, ca: str) -> None:
    """Raise Invalid unless connections to a node can use this TLS mode and CA file."""
    if engine == Engine.SQLITE and (ca or mode != TlsMode.OFF):
        raise Invalid.field("tls", f"node {name} is a file, which has no connections")
    if problem := tls.find_problem(mode, ca):
        # The form marks the field to correct: the file, unless the mode itself is wrong.
        raise Invalid.field("tls_ca" if ca and mode in tls.MODES else "tls", problem)
    try:
        if ca:
            certificates.check_ca(ca)
    except ValueError as error:
        raise Invalid.field("tls_ca", str(error)) from None


def open_queues(node_id: int) -> list[int]:
    """Return the ids of a node's queues that are read_write, or will be once their topic is
    created, rising.
    """
    states = (QueueState.CREATING, QueueState.READ_WRITE)
    with reachable():
        queues = Queue.objects.filter(node=node_id, state__in=states)
        return sorted(
            queues.exclude(topic__state=TopicState.DELETED).values_list("pk", flat=True)
        )


def topics_only_there(*, name: str, actor: Actor) -> list[str]:
    """Return the names of topics that have read-write queues on this node and on no other
    read-write node. Needs `admin`.

    Sends to them fail while the node is closed.
    """
    node = find_node(name=name, actor=actor)
    opened = Queue.objects.filter(state=QueueState.READ_WRITE)
    elsewhere = opened.filter(node__state=NodeState.READ_WRITE).exclude(node=node.id)
    with reachable():
        topics_here = Topic.objects.filter(
            pk__in=opened.filter(node=node.id).values("topic")
        )
        topics = topics_here.exclude(state=TopicState.DELETED).exclude(
            pk__in=elsewhere.values("topic")
        )
        return list(topics.order_by("name").values_list("name", flat=True))


@transactional
def update(
    *, name: str, settings: Mapping[str, Any], actor: Actor, writer: str | None = None
) -> NodeView:
    """Change settings of a node (rules.settings.NODE). Needs `admin`.

    `writer` is the server of a new list that is written to, None if the list stays.

    `messagestore.nodes.registry.update` has closed the node's queues before if the node is
    to be closed.
    """
    access.require_everything(actor, name, what="node")
    values = check_settings(NODE, settings)
    if writer is not None:
        values["writer"] = writer
    row = rows.lock_node(name)
    before = rows.changed_values(row, values)
    if before:
        rows.save_changes(row, before, values, actor=actor, kind="node", name=name)
        record_change("node", row.pk)
    return _view(row)


@transactional
def record_disk_state(*, node_id: int, state: str) -> None:
    """Record how full a node's disk is (`ok`, `low`, `full`), and announce it to brokers."""
    # Announced only if it differs, because each change makes all brokers load the node.
    if DbNode.objects.filter(pk=node_id).exclude(disk=state).update(disk=state):
        record_change("node", node_id)


@transactional
def set_reader(*, name: str, username: str, password: str, actor: Actor) -> None:
    """Store the account with which jobs read a node. '' removes it. Needs `admin`.

    `messagestore.nodes.registry.set_reader` has connected with it before.
    """
    access.require_everything(actor, name, what="node")
    row = rows.lock_node(name)
    before, after = {"reader_username": row.reader_username}, {"reader_username": username}
    row.reader_username, row.reader_password_encrypted = username, _encrypt(password)
    row.save(update_fields=("reader_username", "reader_password_encrypted"))
    # No record_change: jobs read the account from the row, brokers do not use it.
    audit.record(
        actor=actor,
        verb=Verb.SET_READER,
        kind="node",
        name=name,
        before=before,
        after=after,
    )


@transactional
def set_account(*, name: str, username: str, password: str, actor: Actor) -> None:
    """Store the account with which brokers connect to a node. Needs `admin`.

    `messagestore.nodes.registry.set_account` has connected with it before.
    """
    access.require_everything(actor, name, what="node")
    values = check_settings({"username": CREATE["username"]}, {"username": username})
    row = rows.lock_node(name)
    before = {"username": row.username}
    row.username, row.password_encrypted = values["username"], _encrypt(password)
    row.save(update_fields=("username", "password_encrypted"))
    audit.record(
        actor=actor,
        verb=Verb.SET_ACCOUNT,
        kind="node",
        name=name,
        before=before,
        after=values,
    )
    record_change("node", row.pk)


@transactional
def audit_schema_change(
    *,
    verb: str,
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    actor: Actor,
) -> None:
    """Record a change of a node's tables in the audit log."""
    audit.record(actor=actor, verb=verb, kind="node", name=name, before=before, after=after)


def _encrypt(password: str) -> str:
    """Encrypt a password. Raises Conflict(foreign_keys) if the other processes could not
    decrypt it.
    """
    if password:
        fingerprints.record_keys()
    return encrypt(password)


def reader_accounts(node_ids: Iterable[int]) -> dict[int, ReaderAccount]:
    """Return the read-only account of each node, by node id. Raises Undecryptable."""
    with reachable():
        nodes = DbNode.objects.filter(pk__in=list(node_ids))
        accounts = list(
            nodes.values_list("pk", "reader_username", "reader_password_encrypted")
        )
    return {
        node_id: ReaderAccount(username, decrypt(encrypted))
        for node_id, username, encrypted in accounts
    }


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a node from the registry. Its database stays as it is. Needs `admin`.

    Raises Conflict(in_use) while it has queues, including those of topics that were deleted
    less than three days ago.
    """
    access.require_everything(actor, name, what="node")
    row = rows.lock_node(name)
    check_confirmed(name, confirm)
    queue_count = row.queues.count()
    if queue_count:
        raise Conflict(f"Node {name} still holds {queue_count} queues.", code=Code.IN_USE)
    node_id = row.pk  # None after the deletion
    before = {"engine": row.engine, "host": row.host, "database": row.database}
    row.delete()
    audit.record(actor=actor, verb=Verb.DELETE, kind="node", name=name, before=before)
    record_change("node", node_id)


def find_node(*, name: str, actor: Actor) -> NodeView:
    access.require_everything(actor, name, what="node")
    with reachable():
        return _view(rows.find_by_name(DbNode.objects.all(), name, rows.no_node))


def list_nodes(*, actor: Actor, window: Window) -> Page[NodeView]:
    access.require_everything(actor, "list", what="node")
    nodes, following = paging.select_page(
        DbNode.objects.all(), window=window, actor=actor, right=Right.ADMIN
    )
    # Counted for this page only: in the query of the page, all queues would be joined.
    with reachable():
        counted = DbNode.objects.filter(pk__in=[row.pk for row in nodes]).annotate(
            held=Count("queues")
        )
        queue_counts = dict(counted.values_list("pk", "held"))
    return Page(
        tuple(
            rows.make_view(NodeView, row, queues=queue_counts.get(row.pk, 0))
            for row in nodes
        ),
        following,
    )


def _view(row: DbNode) -> NodeView:
    return rows.make_view(NodeView, row, queues=row.queues.count())
