"""Changes to the broker registry: drain, enable and forget brokers."""

from __future__ import annotations

from django.db import transaction

from metadata.actors import Actor, job
from metadata.brokers import discovery
from metadata.brokers.discovery import BrokerView
from metadata.db import access, audit
from metadata.db.clock import UtcNow, before, database_now
from metadata.db.rows import find_by_name
from metadata.db.transactions import transactional
from metadata.errors import Code, Conflict
from metadata.models import Broker
from metadata.rules.audit_verbs import Verb
from metadata.rules.membership.brokers import BrokerState
from metadata.rules.setting_types import Choice
from metadata.rules.settings import Fields, check_settings
from metadata.rules.topics.names import check_confirmed

SETTINGS: Fields = {"state": Choice(dict.fromkeys(BrokerState, ""))}


@transactional
def set_state(*, name: str, state: str, actor: Actor) -> BrokerView:
    """Enable (`in`) or drain (`out`) a broker, which notices within about a second. Needs
    `admin`.

    Raises Invalid, NotFound, Conflict(last_broker) for the last live broker that is in.
    """
    access.require_everything(actor, name, what="broker")
    values = check_settings(SETTINGS, {"state": state})
    # All rows are locked, or two calls could each drain a broker and leave none enabled.
    rows = list(Broker.objects.select_for_update().annotate(now=UtcNow()).order_by("pk"))
    row = next((broker for broker in rows if broker.name == name), None)
    if row is None:
        raise discovery.no_broker(name)
    if row.state != state:
        serving = [
            broker.name
            for broker in rows
            if broker.state == BrokerState.IN and discovery.is_alive(broker)
        ]
        if state == BrokerState.OUT and serving == [name]:
            raise Conflict(
                f"Broker {name} is the last live broker that is enabled: enable another one first.",
                code=Code.LAST_BROKER,
            )
        audit.record(
            actor=actor,
            verb=Verb.UPDATE,
            kind="broker",
            name=name,
            before={"state": row.state},
            after=values,
        )
        row.state = state
        row.save(update_fields=("state",))
    transaction.on_commit(discovery.reload_memory)
    return discovery.broker_view(row)


@transactional
def forget_broker(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a broker that is no longer alive from the registry. Needs `admin`.

    Raises NotFound, Invalid(not_confirmed), Conflict(in_use) while it is alive.
    """
    access.require_everything(actor, name, what="broker")
    row = find_by_name(
        Broker.objects.select_for_update().annotate(now=UtcNow()), name, discovery.no_broker
    )
    check_confirmed(name, confirm)
    if discovery.is_alive(row):
        raise Conflict(f"Broker {name} is alive: stop it first.", code=Code.IN_USE)
    _delete(row, actor)
    transaction.on_commit(discovery.reload_memory)


@transactional
def prune_silent(*, days: int = 7, limit: int = 100) -> int:
    """Delete up to `limit` brokers that were not seen for `days`. Return how many."""
    silent = Broker.objects.select_for_update().filter(
        last_seen__lt=before(database_now(), seconds=days * 86_400)
    )
    rows = list(silent.order_by("pk")[:limit])
    for row in rows:
        _delete(row, job("brokers"))
    return len(rows)


def _delete(row: Broker, actor: Actor) -> None:
    values = {"url": row.url, "state": row.state}
    row.delete()
    audit.record(actor=actor, verb=Verb.DELETE, kind="broker", name=row.name, before=values)
