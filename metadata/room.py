"""How full nodes were, some times an hour, and when they will be full if they go on as they do."""

from __future__ import annotations

from metadata.clock import before, database_now
from metadata.config import config
from metadata.models import NodeRoom
from metadata.rules.alarms import DAY_S, Room, days_left
from metadata.transactions import reachable

EVERY_S = 15 * 60.0
BACK_S = 7 * DAY_S  # what growth is reckoned from
KEPT_S = 30 * DAY_S


def due(node_id: int) -> bool:
    """Whether a node is to be measured again."""
    with reachable():
        since = before(database_now(), seconds=EVERY_S)
        return not NodeRoom.objects.filter(node_ref=node_id, at__gt=since).exists()


def record(*, node_id: int, total: int, used: int) -> None:
    """Records how much of a node's room is taken, in bytes."""
    with reachable():
        NodeRoom.objects.create(node_ref=node_id, at=database_now(), total=total, used=used)


def days_until_full(node_id: int) -> float | None:
    """In how many days the node will store nothing more, as it grew in the last week; None if never."""
    with reachable():
        since = before(database_now(), seconds=BACK_S)
        rows = NodeRoom.objects.filter(node_ref=node_id, at__gte=since).order_by("at")
        rooms = [
            Room(at.timestamp(), total, used) for at, total, used in rows.values_list("at", "total", "used")
        ]
    return days_left(rooms, min_free_percent=config.min_free_percent)


def trim() -> int:
    """Deletes what was measured long ago; how many."""
    with reachable():
        return NodeRoom.objects.filter(at__lt=before(database_now(), seconds=KEPT_S)).delete()[0]
