"""DbNode: a registered database that holds message tables. NodeSize: its size at an hour."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.fields import NamedModel, enum_field, value_constraint
from metadata.rules.addresses import MAX_TEXT
from metadata.rules.disks import DiskState
from metadata.rules.nodes import Engine, NodeKind, NodeState
from metadata.rules.tls import MAX_PATH, TlsMode


class DbNode(NamedModel):
    """A node. `database` is the schema on MySQL and MariaDB, the path of the file on SQLite."""

    kind = enum_field(NodeKind, NodeKind.NORMAL)
    engine = enum_field(Engine)
    # an address, or a list of addresses: see rules/addresses.py
    host = models.CharField(max_length=MAX_TEXT, blank=True)
    port = models.PositiveIntegerField(null=True, blank=True)
    # the server of a list or cluster that brokers write to, as they last recorded it
    writer = models.CharField(max_length=300, blank=True, default="", db_default="")
    database = models.CharField(max_length=1000)
    tls = models.CharField("TLS", max_length=6, default="off", db_default="off")
    tls_ca = models.CharField(
        "CA file", max_length=MAX_PATH, blank=True, default="", db_default=""
    )
    username = models.CharField(max_length=200, blank=True)
    password_encrypted = models.TextField(blank=True)
    state = enum_field(NodeState, NodeState.READ_WRITE)
    dedicated = models.BooleanField(default=False)  # never chosen automatically
    replica_host = models.CharField(max_length=MAX_TEXT, blank=True)
    replica_port = models.PositiveIntegerField(null=True, blank=True)
    reader_username = models.CharField(max_length=200, blank=True)
    reader_password_encrypted = models.TextField(blank=True)
    epoch = models.BigIntegerField(default=1)  # counts promotions and restores
    # also stored in the database, which proves that it has this node's data
    identity = models.CharField(max_length=36, blank=True)
    # why no broker serves it, '' if brokers do
    quarantined = models.CharField(max_length=500, blank=True)
    # Assigned ids of delayed messages, and waiting delayed messages, as a job last read them.
    delayed_given = models.BigIntegerField(default=0, db_default=0)
    delayed_waiting = models.BigIntegerField(default=0, db_default=0)
    capacity_gb = models.PositiveIntegerField(null=True, blank=True)
    disk = enum_field(DiskState, DiskState.OK, max_length=4)
    created_at = models.DateTimeField()

    class Meta(NamedModel.Meta):
        constraints = (
            value_constraint("kind", NodeKind, name="db_node_kind"),
            value_constraint("engine", Engine, name="db_node_engine"),
            value_constraint("state", NodeState, name="db_node_state"),
            value_constraint("tls", TlsMode, name="db_node_tls"),
            value_constraint("disk", DiskState, name="db_node_disk"),
            models.CheckConstraint(condition=Q(epoch__gte=1), name="db_node_epoch"),
        )


class NodeSize(models.Model):
    """Size of a node's files in bytes, and the number of its queue tables."""

    node = models.ForeignKey(DbNode, on_delete=models.CASCADE, related_name="sizes")
    at = models.DateTimeField(db_index=True)
    bytes = models.BigIntegerField()
    tables = models.PositiveIntegerField()

    class Meta:
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("node", "at"), name="node_size_once_an_hour"),
        )

    def __str__(self) -> str:
        return f"{self.node_id} at {self.at}"
