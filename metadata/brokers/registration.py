"""Registration of this process's broker: a row that a loop of each of its workers keeps
fresh.

A broker is one gunicorn master with its URL. Heartbeats are no changes: they raise no
counter and reload no snapshot. The name is what operators speak of; the incarnation is one
life of the broker that goes by it, so that a good-bye that comes late cannot stop the next
life, and two brokers cannot share a row unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from metadata.brokers import discovery, fingerprints
from metadata.db.clock import UtcNow, database_now
from metadata.db.transactions import reachable, transactional
from metadata.models import Broker
from metadata.rules.membership.brokers import Claim, alive, claim

# a row seen so lately is left alone: an UPDATE a second or so, however many workers there
# are
FRESH_S = 0.7


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One life of a broker, from the start of its gunicorn master to the end."""

    name: str
    url: str
    version: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Registration:
    """The registry's word on a broker: drained or enabled; `complaint` says why it is not
    registered.

    One with foreign keys is out: no other broker would know the consumers that it
    registers.
    """

    state: str = Broker.State.IN
    complaint: str = ""

    @property
    def registered(self) -> bool:
        return not self.complaint


_mine = Registration()


def heartbeat(*, identity: BrokerIdentity, held: bool) -> Registration:
    """Record that a broker lives, register it first if need be, and read all brokers into
    memory.

    `held`: it was registered before, so whoever has its name now took it. Raises
    MetadataUnavailable.
    """
    global _mine
    with reachable():
        rows = discovery.read_rows()
        own = _own(rows, identity)
        reason = foreign = ""
        if own is None:
            foreign = fingerprints.find_mismatch()
            reason = foreign or _register(identity=identity, held=held)
            rows = discovery.read_rows()
            own = _own(rows, identity)
        elif not 0 <= _age_s(own) < FRESH_S:
            Broker.objects.filter(pk=own.pk, incarnation=identity.incarnation).update(
                last_seen=UtcNow()
            )
    discovery.remember(rows)
    alone = Broker.State.OUT if foreign else Broker.State.IN
    _mine = Registration(own.state if own else alone, reason)
    return _mine


@transactional
def _register(*, identity: BrokerIdentity, held: bool) -> str:
    """Take the name, '' or why not. A new life clears the good-bye and keeps the state."""
    now = database_now()
    new: dict[str, Any] = {
        "url": identity.url,
        "version": identity.version,
        "incarnation": identity.incarnation,
        "started_at": now,
        "last_seen": now,
        "stopped_at": None,
    }
    row, made = Broker.objects.select_for_update().get_or_create(
        name=identity.name, defaults=new
    )
    if made or row.incarnation == identity.incarnation:
        return ""
    lives = alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=now)
    fate = claim(holder_alive=lives, same_url=row.url == identity.url, held=held)
    if fate is Claim.TAKE:
        Broker.objects.filter(pk=row.pk).update(**new)
        return ""
    remedy = "Give each broker a name of its own with CATMQ_BROKER_NAME."
    if fate is Claim.TAKEN:
        return f"The name {identity.name} belongs to the live broker at {row.url}. {remedy}"
    return f"Another live broker has taken the name {identity.name} and has the same URL. {remedy}"


def record_stop(*, identity: BrokerIdentity) -> bool:
    """Record that a broker stops for good: discovery leaves it out at once. Whether this
    was news.

    Raises MetadataUnavailable.
    """
    with reachable():
        mine = Broker.objects.filter(
            name=identity.name, incarnation=identity.incarnation, stopped_at__isnull=True
        )
        gone = mine.update(stopped_at=UtcNow()) > 0
        discovery.remember(discovery.read_rows())
    return gone


def registration_problem() -> str:
    return _mine.complaint


def evict() -> None:
    """Empty this process's memory: its loop has ended, nobody keeps it fresh."""
    global _mine
    _mine = Registration()
    discovery.evict()


def _own(rows: Iterable[Broker], identity: BrokerIdentity) -> Broker | None:
    wanted = (identity.name, identity.incarnation)
    return next((row for row in rows if (row.name, row.incarnation) == wanted), None)


def _age_s(row: Broker) -> float:
    return float((row.now - row.last_seen).total_seconds())  # type: ignore[attr-defined]  # see discovery.rows
