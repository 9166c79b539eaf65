"""Brokers: the registry by which clients find them and operators pull them in or out.

A broker is one gunicorn master with its URL, and one row. A loop of each of its workers calls `heartbeat`,
which keeps the row fresh and reads all rows into the memory of the process: discovery is answered from
there, at most about a second old, also while metadata is away. Heartbeats are no changes: they raise no
counter and reload no snapshot.

The name is what operators speak of; the incarnation is one life of the broker that goes by it, so that
a good-bye that comes late cannot stop the next life, and two brokers cannot share a row unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from metadata.actors import Actor, job
from metadata.brokers import fingerprints
from metadata.db import access, audit
from metadata.db.clock import UtcNow, before, database_now, ms
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, MetadataUnavailable, NotFound
from metadata.limits.bulkhead import bulkhead
from metadata.models import Broker
from metadata.rules.membership.brokers import ALIVE_S, Claim, alive, claim
from metadata.rules.membership.liveness import MAX_BLIND_S
from metadata.rules.settings import Fields, checked, one_of
from metadata.rules.topics.names import check_confirmed

SETTINGS: Fields = {"state": one_of("in", "out")}
FRESH_S = 0.7  # a row seen so lately is left alone: an UPDATE a second or so, however many workers there are


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker for people and clients; `alive` by the database's clock."""

    name: str
    url: str
    state: str
    alive: bool
    version: str
    started_at_ms: int
    last_seen_at_ms: int
    stopped_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a broker, from the start of its gunicorn master to the end."""

    name: str
    url: str
    version: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The registry's word on a broker: pulled in or out; `complaint` says why it is not registered.

    One with foreign keys is out: no other broker would know the consumers that it registers.
    """

    state: str = Broker.State.IN
    complaint: str = ""

    @property
    def registered(self) -> bool:
        """Return True if the name is this broker's."""
        return not self.complaint


@dataclass(slots=True)
class _Memory:
    """Rows that this process read last.

    After an outage of metadata all rows are old until their brokers' next heartbeats; so who was alive
    before stays so for ALIVE_S.
    """

    views: tuple[BrokerView, ...] | None = None
    standing: Standing = field(default_factory=Standing)
    read_at: float = float("-inf")
    spare_until: float = float("-inf")

    def take(self, rows: Iterable[Broker]) -> None:
        """Replaces the picture."""
        now = monotonic()
        if self.views is not None and now - self.read_at > MAX_BLIND_S:
            self.spare_until = now + ALIVE_S
        self.read_at = now
        spared = self.spared()
        self.views = tuple(_view(row, spared=row.name in spared) for row in rows)

    def spared(self) -> frozenset[str]:
        """The brokers whose old rows prove nothing yet."""
        if self.views is None or monotonic() > self.spare_until:
            return frozenset()
        return frozenset(view.name for view in self.views if view.alive)


_memory = _Memory()


def heartbeat(*, life: Life, held: bool) -> Standing:
    """Records that a broker lives, registers it first if need be, and reads all brokers into memory.

    `held`: it was registered before, so whoever has its name now took it. Raises MetadataUnavailable.
    """
    with reachable():
        rows = _rows()
        own = _of(rows, life)
        complaint = foreign = ""
        if own is None:
            foreign = fingerprints.trouble()
            complaint = foreign or _register(life=life, held=held)
            rows = _rows()
            own = _of(rows, life)
        elif not 0 <= _age_s(own) < FRESH_S:
            Broker.objects.filter(pk=own.pk, incarnation=life.incarnation).update(last_seen=UtcNow())
    _memory.take(rows)
    alone = Broker.State.OUT if foreign else Broker.State.IN
    _memory.standing = Standing(own.state if own else alone, complaint)
    return _memory.standing


@transactional
def _register(*, life: Life, held: bool) -> str:
    """Takes the name, '' or why not. A new life clears the good-bye and keeps the state."""
    now = database_now()
    new: dict[str, Any] = {"url": life.url, "version": life.version, "incarnation": life.incarnation}
    new |= {"started_at": now, "last_seen": now, "stopped_at": None}
    row, made = Broker.objects.select_for_update().get_or_create(name=life.name, defaults=new)
    if made or row.incarnation == life.incarnation:
        return ""
    lives = alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=now)
    fate = claim(holder_alive=lives, same_url=row.url == life.url, held=held)
    if fate is Claim.TAKE:
        Broker.objects.filter(pk=row.pk).update(**new)
        return ""
    remedy = "Give each broker a name of its own with CATMQ_BROKER_NAME."
    if fate is Claim.TAKEN:
        return f"The name {life.name} belongs to the live broker at {row.url}. {remedy}"
    return f"Another live broker has taken the name {life.name} and has the same URL. {remedy}"


def stopped(*, life: Life) -> bool:
    """Records that a broker stops for good: discovery leaves it out at once. Whether this was news.

    Raises MetadataUnavailable.
    """
    with reachable():
        mine = Broker.objects.filter(name=life.name, incarnation=life.incarnation, stopped_at__isnull=True)
        gone = mine.update(stopped_at=UtcNow()) > 0
        _memory.take(_rows())
    return gone


def complaint() -> str:
    """Reason why this process's broker is not registered, '' if it is."""
    return _memory.standing.complaint


def forget_picture() -> None:
    """Empties this process's memory: its loop has ended, nobody keeps it fresh."""
    global _memory
    _memory = _Memory()


def listed(*, actor: Actor) -> tuple[BrokerView, ...]:
    """All brokers, by name; anybody may ask. From memory, if a loop of this process keeps one.

    Raises MetadataUnavailable.
    """
    known = _memory.views
    return known if known is not None else _read()


def named(*, name: str, actor: Actor) -> BrokerView:
    """The broker called `name`; anybody may ask. While metadata is away, as it was.

    Raises NotFound(broker_not_found), MetadataUnavailable.
    """
    try:
        views = _read()
    except MetadataUnavailable:
        if _memory.views is None:
            raise
        views = _memory.views
    found = next((view for view in views if view.name == name), None)
    if found is None:
        raise _no_broker(name)
    return found


def set_state(*, name: str, state: str, actor: Actor) -> BrokerView:
    """The broker pulled `in` or `out`; it notices within about a second. Needs `admin`.

    Raises Invalid, NotFound, Conflict(last_broker) for the last live broker that is in.
    """
    view = _set_state(name=name, state=state, actor=actor)
    _look_again()
    return view


@transactional
def _set_state(*, name: str, state: str, actor: Actor) -> BrokerView:
    access.require_everything(actor, name, what="broker")
    values = checked(SETTINGS, {"state": state})
    rows = list(Broker.objects.select_for_update().annotate(now=UtcNow()).order_by("pk"))
    row = next((one for one in rows if one.name == name), None)
    if row is None:
        raise _no_broker(name)
    if row.state != state:
        if state == Broker.State.OUT:
            _check_not_last(row, rows)
        audit.record(
            actor=actor, verb="update", kind="broker", name=name, before={"state": row.state}, after=values
        )
        row.state = state
        row.save(update_fields=("state",))
    return _view(row, spared=name in _memory.spared())


def _check_not_last(row: Broker, rows: Iterable[Broker]) -> None:
    spared = _memory.spared()
    serving = [one.name for one in rows if one.state == Broker.State.IN and _alive(one, one.name in spared)]
    if serving == [row.name]:
        raise Conflict(
            f"Broker {row.name} is the last live one that is in: pull another one in first.",
            code=Code.LAST_BROKER,
        )


def forget(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Takes a broker that is no longer alive out of the registry. Needs `admin`.

    Raises NotFound, Invalid(not_confirmed), Conflict(in_use) while it is alive.
    """
    _forget(name=name, confirm=confirm, actor=actor)
    _look_again()


@transactional
def _forget(*, name: str, confirm: str | None, actor: Actor) -> None:
    access.require_everything(actor, name, what="broker")
    row = Broker.objects.select_for_update().annotate(now=UtcNow()).filter(name=name).first()
    if row is None:
        raise _no_broker(name)
    check_confirmed(name, confirm)
    if _alive(row, name in _memory.spared()):
        raise Conflict(f"Broker {name} is alive: stop it first.", code=Code.IN_USE)
    _delete(row, actor)


@transactional
def forget_silent(*, days: int = 7, limit: int = 100) -> int:
    """Takes up to `limit` brokers out that were not seen for so many days; how many."""
    silent = Broker.objects.select_for_update().filter(
        last_seen__lt=before(database_now(), seconds=days * 86_400)
    )
    rows = list(silent.order_by("pk")[:limit])
    for row in rows:
        _delete(row, job("brokers"))
    return len(rows)


def _delete(row: Broker, actor: Actor) -> None:
    before_it = {"url": row.url, "state": row.state}
    row.delete()
    audit.record(actor=actor, verb="delete", kind="broker", name=row.name, before=before_it, after=None)


@bulkhead.permit()
def _read() -> tuple[BrokerView, ...]:
    with reachable():
        spared = _memory.spared()
        return tuple(_view(row, spared=row.name in spared) for row in _rows())


def _look_again() -> None:
    """Lets the process that made a change show it at once, if it keeps a picture."""
    if _memory.views is not None:
        with suppress(MetadataUnavailable), reachable():
            _memory.take(_rows())


def _rows() -> list[Broker]:
    """All rows by name, each with the database's time as `now`."""
    return list(Broker.objects.annotate(now=UtcNow()).order_by("name"))


def _of(rows: Iterable[Broker], life: Life) -> Broker | None:
    return next((row for row in rows if (row.name, row.incarnation) == (life.name, life.incarnation)), None)


def _age_s(row: Broker) -> float:
    return float((row.now - row.last_seen).total_seconds())  # type: ignore[attr-defined]  # see _rows


def _alive(row: Broker, spared: bool) -> bool:
    if spared and row.stopped_at is None:
        return True
    return alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=row.now)  # type: ignore[attr-defined]


def _no_broker(name: str) -> NotFound:
    return NotFound(f"Broker {name} is not registered. List them: catmq brokers", code=Code.BROKER_NOT_FOUND)


def _view(row: Broker, *, spared: bool) -> BrokerView:
    return BrokerView(
        name=row.name,
        url=row.url,
        state=row.state,
        alive=_alive(row, spared),
        version=row.version,
        started_at_ms=ms(row.started_at),
        last_seen_at_ms=ms(row.last_seen),
        stopped_at_ms=None if row.stopped_at is None else ms(row.stopped_at),
    )
