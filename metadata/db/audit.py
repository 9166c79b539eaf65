"""The audit log. An entry is written in the transaction of its change, so neither can be
without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metadata.actors import Actor
from metadata.db.clock import database_now
from metadata.db.prune import PruneRule
from metadata.models import AuditLog

SECRETS = ("password", "digest", "api_key", "_encrypted")
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
    """Write an entry: who changed which object. `before` and `after` have only the changed
    values. Secrets are left out.
    """
    AuditLog.objects.create(
        at=database_now(),
        actor_kind=actor.kind,
        actor_name=actor.name,
        address=actor.address,
        verb=verb,
        kind=kind,
        name=name,
        before=_without_secrets(before),
        after=_without_secrets(after),
    )


def _without_secrets(values: Values) -> dict[str, Any] | None:
    if values is None:
        return None
    return {
        key: value
        for key, value in values.items()
        if not any(word in key for word in SECRETS)
    }


prune = PruneRule(AuditLog.objects.all(), at="at", days=400)
