"""The tables of the outbox and the inbox; they lie in the application's database, beside
its own.

All times are the database's clock's, in UTC.
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
    """The database's UTC time inside a statement. Django's Now() would be in the session's
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
        """Of the statement, not of the transaction's begin; it carries its zone."""
        return self.as_sql(compiler, connection, template="STATEMENT_TIMESTAMP()", **extra)


class OutboxMessage(models.Model):
    """A message that is not confirmed yet; its row goes when it is.

    `slot` is that of the key, None without one. Brokers keep the message until
    `deliver_at_ms` (since 1970,
    UTC). `batch_id` and `queue` are those it is sent with, set while it is claimed; `size`
    is about what it takes in a request, bytes.
    """

    class State(models.IntegerChoices):
        WAITING = 0
        # belongs to a batch that may have been sent: it goes again under the same id, or
        # never
        CLAIMED = 1
        FAILED = 2  # refused for good; `error` says why
        HELD = 3  # waits behind a failed one of its key

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
    """A row to lock for each slot of keys: who sends a key keeps it locked until the
    commit.

    So messages of one key get rising ids in the order in which their transactions commit.
    """

    slot = models.PositiveSmallIntegerField(primary_key=True)

    def __str__(self) -> str:
        return f"lane {self.slot}"


class OutboxRelay(models.Model):
    """The one relay that works; the others stand by. At `address` it is notified of
    commits.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    holder = models.CharField(max_length=100, blank=True)
    seen_at = models.DateTimeField(null=True)
    address = models.CharField(max_length=100, blank=True, db_default="")

    def __str__(self) -> str:
        return self.holder or "nobody"


class InboxMessage(models.Model):
    """A message whose effect is in this database: it must not have it again.

    `identity` is a hash of the scope and of the message's id. Rows of releases up to 0.1
    have the id itself.
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
