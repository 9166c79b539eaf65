"""Discovery: the brokers as clients and operators see them, answered from memory.

A loop of each worker reads all rows when it keeps its broker's own fresh, so what is told
is at most about a second old, also while metadata is away.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from metadata.actors import Actor
from metadata.db.clock import UtcNow, ms
from metadata.db.rows import make_view
from metadata.db.transactions import reachable
from metadata.errors import Code, MetadataUnavailable, NotFound
from metadata.limits.bulkhead import bulkhead
from metadata.models import Broker
from metadata.rules.membership.brokers import ALIVE_S, alive
from metadata.rules.membership.liveness import MAX_BLIND_S


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker; `alive` by the database's clock."""

    name: str
    url: str
    state: str
    alive: bool
    version: str
    started_at_ms: int
    last_seen_at_ms: int
    stopped_at_ms: int | None


@dataclass(slots=True)
class _Memory:
    """Rows that this process read last.

    After an outage of metadata all rows are old until their brokers' next heartbeats; so
    who was alive before stays so for ALIVE_S.
    """

    views: tuple[BrokerView, ...] | None = None
    read_at: float = float("-inf")
    spare_until: float = float("-inf")

    def spared(self) -> frozenset[str]:
        """The brokers whose old rows prove nothing yet."""
        if self.views is None or monotonic() > self.spare_until:
            return frozenset()
        return frozenset(
            broker_view.name for broker_view in self.views if broker_view.alive
        )


_memory = _Memory()


def remember(rows: Iterable[Broker]) -> None:
    now = monotonic()
    if _memory.views is not None and now - _memory.read_at > MAX_BLIND_S:
        _memory.spare_until = now + ALIVE_S
    _memory.read_at = now
    _memory.views = tuple(map(broker_view, rows))


def evict() -> None:
    """Empty this process's memory: its loop has ended, nobody keeps it fresh."""
    global _memory
    _memory = _Memory()


def reload_memory() -> None:
    """Let the process that made a change show it at once, if it remembers any."""
    if _memory.views is not None:
        with suppress(MetadataUnavailable), reachable():
            remember(read_rows())


def list_brokers(*, actor: Actor) -> tuple[BrokerView, ...]:
    """All brokers, by name; anybody may ask. From memory, if a loop of this process keeps
    it fresh.

    Raises MetadataUnavailable.
    """
    known = _memory.views
    return known if known is not None else _read()


def is_alone(name: str) -> bool:
    """Return True if this process knows that no other broker than its own lives."""
    known = _memory.views
    return known is not None and not any(one.alive and one.name != name for one in known)


def find_broker(*, name: str, actor: Actor) -> BrokerView:
    """The broker called `name`; anybody may ask. While metadata is away, as it was.

    Raises NotFound(broker_not_found), MetadataUnavailable.
    """
    try:
        views = _read()
    except MetadataUnavailable:
        if _memory.views is None:
            raise
        views = _memory.views
    found = next((one for one in views if one.name == name), None)
    if found is None:
        raise no_broker(name)
    return found


@bulkhead.permit()
def _read() -> tuple[BrokerView, ...]:
    with reachable():
        return tuple(map(broker_view, read_rows()))


def read_rows() -> list[Broker]:
    """All rows by name, each with the database's time as `now`."""
    return list(Broker.objects.annotate(now=UtcNow()).order_by("name"))


def is_alive(row: Broker) -> bool:
    """Return True if a row that has the database's time as `now` is that of a live broker."""
    if row.stopped_at is None and row.name in _memory.spared():
        return True
    return alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=row.now)  # type: ignore[attr-defined]


def broker_view(row: Broker) -> BrokerView:
    return make_view(
        BrokerView, row, alive=is_alive(row), last_seen_at_ms=ms(row.last_seen)
    )


def no_broker(name: str) -> NotFound:
    return NotFound(
        f"Broker {name} is not registered. List them: catmq brokers",
        code=Code.BROKER_NOT_FOUND,
    )
