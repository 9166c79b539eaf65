"""Discovery: the brokers as clients and operators see them, answered from memory.

A loop of each worker reads all rows of the registry when it keeps the row of its own broker
fresh. So the answer is about a second old at most, and is there while metadata is
unavailable, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Annotated

from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.db.clock import UtcNow, ms
from metadata.db.rows import make_view
from metadata.db.transactions import reachable
from metadata.errors import Code, MetadataUnavailable, NotFound
from metadata.limits.bulkhead import bulkhead
from metadata.models import Broker
from metadata.rules.membership.brokers import ALIVE_S, counts_as_alive
from metadata.rules.membership.liveness import MAX_BLIND_S
from metadata.rules.wire import Number


class BrokerView(Struct, frozen=True):
    """A broker. Clients use brokers with `alive` true and state `in`."""

    name: str
    url: str
    state: Annotated[str, Meta(description="`in`, or `out` if it is drained")]
    # By the clock of the database.
    alive: Annotated[bool, Meta(description="it reported within 10 s, and is not stopping")]
    version: str
    started_at_ms: Number
    last_seen_at_ms: Number
    stopped_at_ms: Annotated[Number | None, Meta(description="when it began to stop")]


@dataclass(slots=True)
class _Memory:
    """Brokers as this process last read them.

    After an outage of metadata the rows of all brokers are old until their next heartbeats.
    So brokers that were alive before the outage count as alive until `spare_until`.
    """

    views: tuple[BrokerView, ...] | None = None
    read_at: float = float("-inf")
    spare_until: float = float("-inf")

    def spared(self) -> frozenset[str]:
        """Return the names of brokers whose old rows do not prove yet that they are dead."""
        if self.views is None or monotonic() > self.spare_until:
            return frozenset()
        return frozenset(view.name for view in self.views if view.alive)


_memory = _Memory()


def remember(rows: Iterable[Broker]) -> None:
    """Keep rows as just read by read_rows() in the memory of this process."""
    now = monotonic()
    # Before the views are computed: they depend on it.
    if _memory.views is not None and now - _memory.read_at > MAX_BLIND_S:
        _memory.spare_until = now + ALIVE_S
    _memory.read_at = now
    _memory.views = tuple(map(broker_view, rows))


def evict() -> None:
    """Empty the memory of this process, because its loop has ended and nothing keeps it
    fresh.
    """
    global _memory
    _memory = _Memory()


def reload_memory() -> None:
    """Show a change at once in the process that made it, if it keeps the brokers in memory."""
    if _memory.views is not None:
        with suppress(MetadataUnavailable), reachable():
            remember(read_rows())


def list_brokers(*, actor: Actor) -> tuple[BrokerView, ...]:
    """Return all brokers by name. Needs no right. From memory if a loop of this process
    keeps it fresh.

    Raises MetadataUnavailable.
    """
    views = _memory.views
    return views if views is not None else _read()


def other_urls(name: str, *, actor: Actor) -> tuple[str, ...]:
    """Return the URLs of the live brokers except `name`, in the order of their names.

    Raises MetadataUnavailable.
    """
    views = list_brokers(actor=actor)
    return tuple(view.url for view in views if view.alive and view.name != name)


def is_alone(name: str) -> bool:
    """Return True if this process knows that no broker but `name` is alive."""
    views = _memory.views
    return views is not None and not any(view.alive and view.name != name for view in views)


def find_broker(*, name: str, actor: Actor) -> BrokerView:
    """Return the broker called `name`. Needs no right. From memory while metadata is
    unavailable.

    Raises NotFound(broker_not_found), MetadataUnavailable.
    """
    try:
        views = _read()
    except MetadataUnavailable:
        if _memory.views is None:
            raise
        views = _memory.views
    broker = next((view for view in views if view.name == name), None)
    if broker is None:
        raise no_broker(name)
    return broker


@bulkhead.permit()
def _read() -> tuple[BrokerView, ...]:
    with reachable():
        return tuple(map(broker_view, read_rows()))


def read_rows() -> list[Broker]:
    """Return all rows by name, each with the database's time as `now`."""
    return list(Broker.objects.annotate(now=UtcNow()).order_by("name"))


def is_alive(row: Broker) -> bool:
    """Return True if a row of read_rows() is that of a live broker."""
    if row.stopped_at is None and row.name in _memory.spared():
        return True
    return counts_as_alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=row.now)  # type: ignore[attr-defined]


def broker_view(row: Broker) -> BrokerView:
    return make_view(
        BrokerView, row, alive=is_alive(row), last_seen_at_ms=ms(row.last_seen)
    )


def no_broker(name: str) -> NotFound:
    return NotFound(
        f"Broker {name} is not registered. List them: catmq brokers",
        code=Code.BROKER_NOT_FOUND,
    )
