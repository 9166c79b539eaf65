"""The audit log: written in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metadata.actors import Actor
from metadata.db.clock import database_now
from metadata.db.prune import PruneRule
from metadata.models import AuditLog

SECRET = ("password", "digest", "api_key", "_encrypted")
Values = Mapping[str, Any] | None


def record(
    *,
    actor: Actor,
    verb: str,
    kind: str,
    name: str,
    before: Values = None,
    after: Values = None,
) -> None:
    """Write who did what; `before` and `after` hold only what changed. Secrets are left
    out.
    """
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
    return {
        key: value
        for key, value in values.items()
        if not any(word in key for word in SECRET)
    }


prune = PruneRule(AuditLog.objects.all(), at="at", days=400)
