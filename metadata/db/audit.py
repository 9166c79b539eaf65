"""The audit log: written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metadata.actors import Actor
from metadata.db.clock import before as earlier
from metadata.db.clock import database_now
from metadata.models import AuditLog

SECRET = ("password", "digest", "api_key", "_encrypted")
Values = Mapping[str, Any] | None


def record(*, actor: Actor, verb: str, kind: str, name: str, before: Values, after: Values) -> None:
    """Writes who did what; `before` and `after` hold only what changed. Secrets are left out."""
    AuditLog.objects.create(
        at=database_now(),
        actor_kind=actor.kind,
        actor_name=actor.name,
        address=actor.address,
        verb=verb,
        kind=kind,
        name=name,
        before=_clean(before),
        after=_clean(after),
    )


def _clean(values: Values) -> dict[str, Any] | None:
    if values is None:
        return None
    return {key: value for key, value in values.items() if not any(word in key for word in SECRET)}


def trim(*, days: int = 400, limit: int = 5_000) -> int:
    """Deletes up to `limit` rows older than `days`; how many went. Repeat while it returns `limit`."""
    old = AuditLog.objects.filter(at__lt=earlier(database_now(), seconds=days * 86_400)).order_by("id")
    ids = list(old.values_list("id", flat=True)[:limit])
    return AuditLog.objects.filter(id__in=ids).delete()[0]
