"""Acknowledgements: the last metadata change that each worker of each broker has followed.

A worker acknowledges a change once it has loaded it and no longer uses anything older. So
the code that moves a node can wait until no worker writes to the old address any more. The
rows are written by the loop that keeps the broker's own row fresh: at once when there is a
newer change, and every REPEAT_S as a sign of life.

The same rows carry the demand of each worker for the send rate limit (send_rate_limit.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from metadata.brokers.registration import BrokerIdentity
from metadata.db.clock import UtcNow, before, database_now
from metadata.db.transactions import reachable, transactional
from metadata.models import Broker, BrokerProcess
from metadata.rules.membership.brokers import ALIVE_S, BrokerState, counts_as_alive

REPEAT_S = 5.0
SILENT_S = REPEAT_S + ALIVE_S  # age of the last sign of life at which a worker has ended
_KEPT_S = 3600.0


@dataclass(slots=True)
class SnapshotAck:
    """Last acknowledgement of a worker."""

    name: str
    change: int = -1
    written_at: float = float("-inf")

    def acknowledge(self, *, identity: BrokerIdentity, change: int) -> None:
        """Record that this worker has followed metadata to a change. Raises
        MetadataUnavailable.
        """
        now = monotonic()
        if change == self.change and now - self.written_at < REPEAT_S:
            return
        if _record(identity=identity, name=self.name, change=change):
            self.change, self.written_at = change, now


@transactional
def _record(*, identity: BrokerIdentity, name: str, change: int) -> bool:
    """Write a worker's row. Return False while its broker is not registered.

    A new worker also deletes the rows of workers of its broker that ended long ago.
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
    """Return the number of recently seen workers of live brokers that are in. Raises
    MetadataUnavailable.
    """
    return len(read_demands())


def read_demands() -> dict[str, str]:
    """Return the reported demand of each recently seen worker of a live broker that is in,
    by worker name. Raises MetadataUnavailable.
    """
    with reachable():
        now = database_now()
        since = before(now, seconds=SILENT_S)
        rows = BrokerProcess.objects.filter(
            last_seen__gt=since, broker__state=BrokerState.IN
        )
        return {
            row.name: row.demand
            for row in rows.select_related("broker")
            if counts_as_alive(
                last_seen=row.broker.last_seen, stopped_at=row.broker.stopped_at, now=now
            )
        }


def report_demand(*, name: str, text: str) -> None:
    """Write the demand of a worker, for the others to read. Raises MetadataUnavailable."""
    with reachable():
        BrokerProcess.objects.filter(name=name).exclude(demand=text).update(demand=text)


def find_late_workers(change: int) -> list[str]:
    """Return the names of live workers that have not followed metadata to a change.

    A live broker none of whose workers has acknowledged anything yet is returned by its own
    name. Raises MetadataUnavailable.
    """
    with reachable():
        now = database_now()
        live_brokers = [
            row
            for row in Broker.objects.prefetch_related("processes").order_by("name")
            if counts_as_alive(last_seen=row.last_seen, stopped_at=row.stopped_at, now=now)
        ]
        late: list[str] = []
        for row in live_brokers:
            since = before(now, seconds=SILENT_S)
            workers = [worker for worker in row.processes.all() if worker.last_seen > since]
            late += (
                [worker.name for worker in workers if worker.acknowledged < change]
                if workers
                else [row.name]
            )
        return sorted(late)
