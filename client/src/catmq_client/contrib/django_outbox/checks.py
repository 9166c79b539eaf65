"""System checks of the outbox: ids catmq_outbox.W001 and so on."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Warning
from django.db import DEFAULT_DB_ALIAS, router

from catmq_client.contrib.django_outbox.models import InboxMessage, OutboxMessage


def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the outbox or the inbox is not in the default database.

    The application's own rows usually are, and only one database's rows share a transaction.
    """
    aliases = {router.db_for_write(model) for model in (OutboxMessage, InboxMessage)}
    return [
        Warning(
            f"The routers send catmq_outbox to database {alias!r}: messages, tasks and the "
            "inbox are part of "
            f"transactions on {alias!r} only, not of those on {DEFAULT_DB_ALIAS!r}.",
            hint=f"If the rows of the application are in {DEFAULT_DB_ALIAS!r}, send "
            "catmq_outbox and "
            "catmq_tasks there. Otherwise add the id to SILENCED_SYSTEM_CHECKS.",
            id="catmq_outbox.W001",
        )
        for alias in sorted(aliases - {DEFAULT_DB_ALIAS})
    ]
