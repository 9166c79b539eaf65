"""NodeSize: how much a node held at an hour."""

from __future__ import annotations

from django.db import models

from metadata.models.nodes import DbNode


class NodeSize(models.Model):
    """Size of a node's files, in bytes, and number of tables of queues it had."""

    node = models.ForeignKey(DbNode, on_delete=models.CASCADE, related_name="sizes")
    at = models.DateTimeField(db_index=True)
    bytes = models.BigIntegerField()
    tables = models.PositiveIntegerField()

    class Meta:
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=("node", "at"), name="node_size_once_an_hour"),)

    def __str__(self) -> str:
        return f"{self.node_id} at {self.at}"
