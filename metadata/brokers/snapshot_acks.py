"""Acknowledgements: how far each worker of each broker has followed metadata.

A worker acknowledges a change once it has loaded it and has let go of everything older, so
that whoever moves a node knows when nobody can write to its old address any more. The rows
are written by the loop that keeps the broker's own row fresh, when there is something new
to say or the last word is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from metadata.brokers.registration import BrokerIdentity
from metadata.db.clock import UtcNow, before, database_now
from metadata.db.transactions import reachable, transactional
from metadata.models import Broker, BrokerProcess
from metadata.rules.membership.brokers import ALIVE_S, alive

REPEAT_S = 5.0
SILENT_S = REPEAT_S + ALIVE_S  # a worker that says nothing for so long has ended
_KEPT_S = 3600.0


@dataclass(slots=True)
class SnapshotAck:
    """Last acknowledgement of one worker."""

    name: str
    said: int = -1
    said_at: float = float("-inf")

    def acknowledge(self, *, identity: BrokerIdentity, change: int) -> None:
        """Say that this worker has followed metadata to a change. Raises
        MetadataUnavailable.
        """
        now = monotonic()
        if change == self.said and now - self.said_at < REPEAT_S:
            return
        if _record(identity=identity, name=self.name, change=change):
            self.said, self.said_at = change, now


@transactional
def _record(*, identity: BrokerIdentity, name: str, change: int) -> bool:
    """Write a worker's row, and delete those of workers long gone; False while the broker
    has no row.
    """
    values = {"acknowledged": change, "last_seen": UtcNow()}
    if BrokerProcess.objects.filter(name=name).update(**values):
        return True
    broker = Broker.objects.filter(
        name=identity.name, incarnation=identity.incarnation
    ).first()
    if broker is None:
        return False
    now = database_now()
    BrokerProcess.objects.filter(
        broker=broker, last_seen__lt=before(now, seconds=_KEPT_S)
    ).delete()
    BrokerProcess.objects.update_or_create(
        name=name, defaults={**values, "broker": broker, "last_seen": now}
    )
    return True


def count_workers() -> int:
    """Number of recently heard workers of live brokers that are in. Raises
    MetadataUnavailable.
    """
    return len(read_demands())


def read_demands() -> dict[str, str]:
    """Name → what it said of its demand, of those workers. Raises MetadataUnavailable."""
    with reachable():
        now = database_now()
        since = before(now, seconds=SILENT_S)
        rows = BrokerProcess.objects.filter(
            last_seen__gt=since, broker__state=Broker.State.IN
        )
        return {
            row.name: row.demand
            for row in rows.select_related("broker")
            if alive(
                last_seen=row.broker.last_seen, stopped_at=row.broker.stopped_at, now=now
            )
        }


def report_demand(*, name: str, text: str) -> None:
    """Tell the others what a worker is asked for. Raises MetadataUnavailable."""
    with reachable():
        BrokerProcess.objects.filter(name=name).exclude(demand=text).update(demand=text)


def find_late_workers(change: int) -> list[str]:
    """The live workers that have not followed metadata to a change, by name, and live
    brokers whose workers have said nothing yet. Raises MetadataUnavailable."""
    with reachable():
        now = database_now()
        living = [
            row
            for row in Broker.objects.prefetch_related("processes").order_by("name")
            if alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=now)
        ]
        late: list[str] = []
        for row in living:
            since = before(now, seconds=SILENT_S)
            workers = [one for one in row.processes.all() if one.last_seen > since]
            late += (
                [one.name for one in workers if one.acknowledged < change]
                if workers
                else [row.name]
            )
        return sorted(late)
