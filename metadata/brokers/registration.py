"""Registration of this process's broker: a row that a loop of each of its workers keeps
fresh.

A broker is a gunicorn master with its URL. Its heartbeats are not metadata changes: they
raise no counter and reload no snapshot.

Operators know a broker by its name. The incarnation identifies a life of the broker with
that name, from start to end. So a late record_stop() cannot stop the next life, and two
brokers cannot share a row unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from metadata.brokers import discovery, fingerprints
from metadata.db.clock import UtcNow, database_now
from metadata.db.transactions import reachable, transactional
from metadata.models import Broker
from metadata.rules.membership.brokers import (
    BrokerState,
    Claim,
    counts_as_alive,
    decide_claim,
)

# A row that was seen more recently is not updated, so there is about an UPDATE a second,
# however many workers there are.
FRESH_S = 0.7


class BrokerIdentity(Struct, frozen=True):
    """A life of a broker, from the start of its gunicorn master to the end."""

    name: str
    url: str
    version: str
    incarnation: str


class Registration(Struct, frozen=True):
    """State of a broker in the registry, in or out. `complaint` is the reason why it is not
    registered, '' if it is.

    A broker with foreign keys is out, because no other broker would accept the ids of the
    consumers that it registers.
    """

    state: str = BrokerState.IN
    complaint: str = ""

    @property
    def registered(self) -> bool:
        return not self.complaint


_registration = Registration()


def heartbeat(*, identity: BrokerIdentity, held: bool) -> Registration:
    """Record that a broker is alive, and read all brokers into memory. Registers the broker
    if it is not.

    `held`: this life was registered before, so another broker with its name has taken the
    name. Raises MetadataUnavailable.
    """
    global _registration
    with reachable():
        rows = discovery.read_rows()
        own_row = _find_own(rows, identity)
        problem = mismatch = ""
        if own_row is None:
            mismatch = fingerprints.find_mismatch()
            problem = mismatch or _register(identity=identity, held=held)
            rows = discovery.read_rows()
            own_row = _find_own(rows, identity)
        elif not 0 <= (own_row.now - own_row.last_seen).total_seconds() < FRESH_S:  # type: ignore[attr-defined]
            # The incarnation is a fence: this must not refresh the row of a broker that has
            # taken the name since the read.
            Broker.objects.filter(pk=own_row.pk, incarnation=identity.incarnation).update(
                last_seen=UtcNow()
            )
    discovery.remember(rows)
    unregistered_state = BrokerState.OUT if mismatch else BrokerState.IN
    _registration = Registration(own_row.state if own_row else unregistered_state, problem)
    return _registration


@transactional
def _register(*, identity: BrokerIdentity, held: bool) -> str:
    """Take the name for this life. Return '', or why it cannot.

    A new life clears `stopped_at` and keeps the state, so a drained broker stays drained.
    """
    now = database_now()
    values: dict[str, Any] = {
        "url": identity.url,
        "version": identity.version,
        "incarnation": identity.incarnation,
        "started_at": now,
        "last_seen": now,
        "stopped_at": None,
    }
    row, created = Broker.objects.select_for_update().get_or_create(
        name=identity.name, defaults=values
    )
    if created or row.incarnation == identity.incarnation:
        return ""
    holder_alive = counts_as_alive(
        last_seen=row.last_seen, stopped_at=row.stopped_at, now=now
    )
    decision = decide_claim(
        holder_alive=holder_alive, same_url=row.url == identity.url, held=held
    )
    if decision is Claim.TAKE:
        Broker.objects.filter(pk=row.pk).update(**values)
        return ""
    remedy = "Give each broker a name of its own with CATMQ_BROKER_NAME."
    if decision is Claim.TAKEN:
        return f"The name {identity.name} belongs to the live broker at {row.url}. {remedy}"
    return f"Another live broker has taken the name {identity.name} and has the same URL. {remedy}"


def record_stop(*, identity: BrokerIdentity) -> bool:
    """Record that a broker stops for good, so that discovery leaves it out at once. Return
    False if that was recorded before.

    Raises MetadataUnavailable.
    """
    with reachable():
        own_row = Broker.objects.filter(
            name=identity.name, incarnation=identity.incarnation, stopped_at__isnull=True
        )
        stopped = own_row.update(stopped_at=UtcNow()) > 0
        discovery.remember(discovery.read_rows())
    return stopped


def registration_problem() -> str:
    """Return why this process's broker is not registered, '' if it is."""
    return _registration.complaint


def evict() -> None:
    """Empty the memory of this process, because its loop has ended and nothing keeps it
    fresh.
    """
    global _registration
    _registration = Registration()
    discovery.evict()


def _find_own(rows: Iterable[Broker], identity: BrokerIdentity) -> Broker | None:
    key = (identity.name, identity.incarnation)
    return next((row for row in rows if (row.name, row.incarnation) == key), None)
