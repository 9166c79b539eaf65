"""The tables of the outbox and the inbox, in the application's database.

All times are in UTC, from the database's clock.
"""

from __future__ import annotations

from typing import Any

from django.db import models

MAX_TOPIC = 210  # retry topics have longer names than users may give
MAX_KEY = 200
MAX_TAG = 100
MAX_TRACE = 100
MAX_IDENTITY = 200
MAX_SCOPE = 200


class UtcNow(models.Func):
    """The database's UTC time as an SQL expression. Django's Now() is in the session's time
    zone on MySQL.
    """

    arity = 0
    output_field = models.DateTimeField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW')",
            **extra,
        )

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # NOW() would be the time at which the transaction began. The value has a time zone.
        return self.as_sql(compiler, connection, template="STATEMENT_TIMESTAMP()", **extra)


class OutboxMessage(models.Model):
    """A message that no broker has confirmed yet. Its row is deleted when it is confirmed.

    `slot` is the slot of the key, None without a key. Brokers keep the message until
    `deliver_at_ms` (ms since 1970, UTC). `batch_id` and `queue` are those of its batch while
    it is claimed. `size` is its approximate size in a request, in bytes.
    """

    class State(models.IntegerChoices):
        WAITING = 0
        # In a batch that may have been sent. Until it is certain that the batch is not
        # stored, it is only repeated under the same id.
        CLAIMED = 1
        FAILED = 2  # refused for good; the reason is in `error`
        HELD = 3  # waits for a failed message of its key

    topic = models.CharField(max_length=MAX_TOPIC)
    key = models.CharField(max_length=MAX_KEY, null=True)  # noqa: DJ001  '' is a key, none is not
    slot = models.PositiveSmallIntegerField(null=True)
    tag = models.CharField(max_length=MAX_TAG, null=True)  # noqa: DJ001
    headers = models.TextField()  # JSON
    trace_id = models.CharField(max_length=MAX_TRACE, null=True)  # noqa: DJ001
    body = models.BinaryField()
    size = models.PositiveIntegerField()
    deliver_at_ms = models.BigIntegerField(null=True)
    created_at = models.DateTimeField()
    state = models.PositiveSmallIntegerField(choices=State.choices, default=State.WAITING)
    batch_id = models.UUIDField(null=True)
    queue = models.BigIntegerField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        ordering = ("id",)
        indexes = (
            models.Index(fields=("state", "id"), name="catmq_outbox_state"),
            models.Index(fields=("batch_id",), name="catmq_outbox_batch"),
        )

    def __str__(self) -> str:
        return f"{self.topic} {self.pk}"


class OutboxLane(models.Model):
    """A row to lock for each slot. A transaction that sends a key locks the row of its slot
    until the commit.

    So the ids of a key's messages rise in the order in which their transactions commit.
    """

    slot = models.PositiveSmallIntegerField(primary_key=True)

    def __str__(self) -> str:
        return f"lane {self.slot}"


class OutboxRelay(models.Model):
    """The lease of the active relay; other relays stand by. The table has one row.

    Processes that commit messages notify the relay at `address`. `seen_at` is when the lease
    was last renewed.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    holder = models.CharField(max_length=100, blank=True)
    seen_at = models.DateTimeField(null=True)
    address = models.CharField(max_length=100, blank=True, db_default="")

    def __str__(self) -> str:
        return self.holder or "nobody"


class InboxMessage(models.Model):
    """A message that was handled. Its effect is in this database and must not happen twice.

    `identity` is a hash of the scope and of the message's id. Rows written by releases up to
    0.1 have the id itself.
    """

    scope = models.CharField(max_length=MAX_SCOPE)
    identity = models.CharField(max_length=MAX_IDENTITY)
    handled_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("scope", "identity"), name="catmq_inbox_scope_identity"
            ),
        )
        indexes = (models.Index(fields=("handled_at",), name="catmq_inbox_handled_at"),)

    def __str__(self) -> str:
        return f"{self.scope} {self.identity}"
