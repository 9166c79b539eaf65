"""Nodes: the registry of databases that hold message tables. Passwords go in and never come
out.

A node holds messages of every topic, so all verbs here need `admin` on everything, whatever
a node is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import Count

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
from metadata.rules.setting_types import Choice, Text, Whole
from metadata.rules.settings import NODE, Fields, check_settings
from metadata.rules.topics.names import check_confirmed, check_name

OWN_FILES = (
    "metadata.sqlite3",
    "jobs.sqlite3",
    "secret.key",
    "encryption.key",
    "credentials.env",
)
CREATE: Fields = {
    "kind": Choice({"normal": "", "failure": ""}),
    "engine": Choice({"mysql": "", "sqlite": ""}),
    "host": Text(255),
    "port": Whole(0, 65_535, null="none"),
    "database": Text(1000),
    "username": Text(200),
    **{name: NODE[name] for name in ("dedicated", "capacity_gb", "tls", "tls_ca")},
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node without passwords; `queues` counts those of deleted topics too.

    `replica_*`: where pulls go while it is away; `quarantined`: why no broker serves it, ''
    if they do.
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


@dataclass(frozen=True, slots=True)
class ReaderAccount:
    """An account of a node that can only read; without one both are empty."""

    username: str
    password: str = field(repr=False)


def check_new(*, name: str, actor: Actor, **given: object) -> dict[str, Any]:
    """The checked columns of a node that could be created so. Needs `admin`. Raises
    Invalid, Conflict.
    """
    check_name("node", name)
    access.require_everything(actor, name, what="node")
    values = check_settings(CREATE, given)
    if not values["database"] or (values["engine"] == "mysql" and not values.get("host")):
        raise Invalid.field(
            "host" if values["database"] else "database", "must not be empty"
        )
    if values["engine"] == "sqlite":
        _check_place(values["database"])
    check_tls(
        name, values["engine"], mode=values.get("tls", "off"), ca=values.get("tls_ca", "")
    )
    with reachable():
        if DbNode.objects.filter(name=name).exists():
            raise Conflict(f"Node {name} exists already.", code=Code.ALREADY_EXISTS)
    return values


def _check_place(database: str) -> None:
    """Raise Invalid unless a file lies where nodes may: any other could be one that is not
    ours to touch.
    """
    try:
        path = Path(config.data_dir, database).resolve()
    # a NUL, a name that is too long, links in a circle
    except (ValueError, OSError, RuntimeError):
        raise Invalid.field("database", "is not a file path") from None
    places = [config.data_dir, *map(Path, config.sqlite_dirs)]
    if not any(one.resolve() in path.parents for one in places):
        what = (
            f"{path} does not lie below the data directory, {config.data_dir}: choose a "
            "file there"
        )
        raise Invalid.field(
            "database", f"{what}, or name its directory in CATMQ_SQLITE_DIRS"
        )
    if path.parent == config.data_dir.resolve() and path.name in OWN_FILES:
        raise Invalid.field(
            "database", f"{path} is a file of the server itself: choose another"
        )


def find_name_by_identity(identity: str) -> str | None:
    with reachable():
        return (
            DbNode.objects.filter(identity=identity).values_list("name", flat=True).first()
        )


@transactional
def create(
    *, name: str, actor: Actor, password: str = "", identity: str = "", **given: object
) -> NodeView:
    """A new node, read-write, `given` the columns of CREATE. Needs `admin`.

    `messagestore.nodes.registry.register` has checked that it can serve, and has written
    `identity` into its
    database. Raises Invalid, Conflict(already_exists).
    """
    values = check_new(name=name, actor=actor, **given)
    sealed = _sealed(password)
    values_of_new = {
        "password_encrypted": sealed,
        "created_at": database_now(),
        "identity": identity,
    }
    row = rows.create(DbNode.objects.all(), "Node", name=name, **values_of_new, **values)
    audit.record(actor=actor, verb="create", kind="node", name=name, after=values)
    record_change("node", row.pk)
    return _view(row)


def check_update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """The node as it is, if it could be changed so. Needs `admin`. Raises Invalid,
    NotFound.
    """
    found = find_node(name=name, actor=actor)
    check_settings(NODE, settings)
    if settings.get("replica_host") and found.engine != DbNode.Engine.MYSQL:
        raise Invalid.field("replica_host", f"node {name} is a file, which has no replica")
    if settings.keys() & {"tls", "tls_ca"}:
        mode, ca = settings.get("tls", found.tls), settings.get("tls_ca", found.tls_ca)
        check_tls(name, found.engine, mode=mode, ca=ca)
    return found


def check_tls(name: str, engine: str, *, mode: str, ca: str) -> None:
    """Raise Invalid unless connections to a node may be encrypted so."""
    if engine == DbNode.Engine.SQLITE and (ca or mode != "off"):
        raise Invalid.field("tls", f"node {name} is a file, which has no connections")
    if found := tls.find_problem(mode, ca):
        raise Invalid.field("tls_ca" if ca and mode in tls.MODES else "tls", found)
    try:
        if ca:
            certificates.check_ca(ca)
    except ValueError as error:
        raise Invalid.field("tls_ca", str(error)) from None


def open_queues(node_id: int) -> list[int]:
    """The queues of a node that metadata calls read_write, or will once their topic is
    made; rising.
    """
    states = (Queue.State.CREATING, Queue.State.READ_WRITE)
    with reachable():
        queues = Queue.objects.filter(node=node_id, state__in=states)
        return sorted(
            queues.exclude(topic__state=Topic.State.DELETED).values_list("pk", flat=True)
        )


def topics_only_there(*, name: str, actor: Actor) -> list[str]:
    """The topics that have open queues on a node and on no other that takes messages, by
    name.

    Needs `admin`. They cannot be sent to while the node is closed.
    """
    node = find_node(name=name, actor=actor)
    opened = Queue.objects.filter(state=Queue.State.READ_WRITE)
    elsewhere = opened.filter(node__state=DbNode.State.READ_WRITE).exclude(node=node.id)
    with reachable():
        here = Topic.objects.filter(pk__in=opened.filter(node=node.id).values("topic"))
        topics = here.exclude(state=Topic.State.DELETED).exclude(
            pk__in=elsewhere.values("topic")
        )
        return list(topics.order_by("name").values_list("name", flat=True))


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """The node with state, dedicated or capacity_gb changed. Needs `admin`.

    `messagestore.nodes.registry.update` has closed the node's queues if it is to be closed.
    """
    access.require_everything(actor, name, what="node")
    values = check_settings(NODE, settings)
    row = rows.lock_node(name)
    before = rows.changed_values(row, values)
    if before:
        rows.save_changes(row, before, values, actor=actor, kind="node", name=name)
        record_change("node", row.pk)
    return _view(row)


@transactional
def record_disk_state(*, node_id: int, state: str) -> None:
    """Record how full a node is (`ok`, `low`, `full`), as it was measured; brokers learn it
    at once.
    """
    if DbNode.objects.filter(pk=node_id).exclude(disk=state).update(disk=state):
        record_change("node", node_id)


@transactional
def set_reader(*, name: str, username: str, password: str, actor: Actor) -> None:
    """Keep the account with which jobs read a node; '' takes it away. Needs `admin`.

    `messagestore.nodes.registry.set_reader` has tried it.
    """
    access.require_everything(actor, name, what="node")
    row = rows.lock_node(name)
    before, after = {"reader_username": row.reader_username}, {"reader_username": username}
    row.reader_username, row.reader_password_encrypted = username, _sealed(password)
    row.save(update_fields=("reader_username", "reader_password_encrypted"))
    audit.record(
        actor=actor, verb="set_reader", kind="node", name=name, before=before, after=after
    )


@transactional
def set_account(*, name: str, username: str, password: str, actor: Actor) -> None:
    """Keep the account with which brokers reach a node. Needs `admin`.

    `messagestore.nodes.registry.set_account` has tried it.
    """
    access.require_everything(actor, name, what="node")
    values = check_settings({"username": CREATE["username"]}, {"username": username})
    row = rows.lock_node(name)
    before = {"username": row.username}
    row.username, row.password_encrypted = values["username"], _sealed(password)
    row.save(update_fields=("username", "password_encrypted"))
    audit.record(
        actor=actor, verb="set_account", kind="node", name=name, before=before, after=values
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
    """Record in the audit log what was done to the tables of a node."""
    audit.record(actor=actor, verb=verb, kind="node", name=name, before=before, after=after)


def _sealed(password: str) -> str:
    """The password as it is kept. Raises Conflict(foreign_keys): nobody else could read it."""
    if password:
        fingerprints.record_keys()
    return encrypt(password)


def reader_accounts(node_ids: Iterable[int]) -> dict[int, ReaderAccount]:
    """{node id: its reader account}. Raises Undecryptable."""
    with reachable():
        nodes = DbNode.objects.filter(pk__in=list(node_ids))
        found = list(
            nodes.values_list("pk", "reader_username", "reader_password_encrypted")
        )
    return {
        node_id: ReaderAccount(username, decrypt(sealed))
        for node_id, username, sealed in found
    }


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Take a node out of the registry; its database stays as it is. Needs `admin`.

    Raises Conflict(in_use) while queues are on it, those of topics deleted less than three
    days ago too.
    """
    access.require_everything(actor, name, what="node")
    row = rows.lock_node(name)
    check_confirmed(name, confirm)
    held = row.queues.count()
    if held:
        raise Conflict(f"Node {name} still holds {held} queues.", code=Code.IN_USE)
    node_id, before = (
        row.pk,
        {"engine": row.engine, "host": row.host, "database": row.database},
    )
    row.delete()
    audit.record(actor=actor, verb="delete", kind="node", name=name, before=before)
    record_change("node", node_id)


def find_node(*, name: str, actor: Actor) -> NodeView:
    access.require_everything(actor, name, what="node")
    with reachable():
        return _view(rows.find_by_name(DbNode.objects.all(), name, rows.no_node))


def list_nodes(*, actor: Actor, window: Window) -> Page[NodeView]:
    access.require_everything(actor, "list", what="node")
    found, following = paging.select_page(
        DbNode.objects.all(), window=window, actor=actor, right="admin"
    )
    with reachable():
        counted = DbNode.objects.filter(pk__in=[row.pk for row in found]).annotate(
            held=Count("queues")
        )
        held = dict(counted.values_list("pk", "held"))
    return Page(tuple(_as_view(row, held.get(row.pk, 0)) for row in found), following)


def _view(row: DbNode) -> NodeView:
    return _as_view(row, row.queues.count())


def _as_view(row: DbNode, held: int) -> NodeView:
    return rows.make_view(NodeView, row, queues=held)
