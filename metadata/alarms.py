"""Alarms: raised by jobs that met something, ended by those that found it mended."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import F

from metadata.clock import before, database_now
from metadata.models import Alarm
from metadata.transactions import reachable, transactional

KEPT_DAYS = 90


@transactional
def raise_alarm(*, kind: str, name: str, detail: str, count: int = 0, place: int | None = None) -> None:
    """Records that something is so (again); `count` is added to what was counted before."""
    now = database_now()
    given = {"detail": detail[:1000], "place": place, "last_at": now, "ended_at": None}
    known = Alarm.objects.filter(kind=kind, name=name)
    if not known.update(count=F("count") + count, **given):
        Alarm.objects.get_or_create(kind=kind, name=name, defaults={**given, "first_at": now})
        known.update(count=F("count") + count, **given)  # also if somebody else has just made it


@transactional
def end(*, kind: str, names: Collection[str]) -> int:
    """Records that it is so no more; how many alarms ended."""
    rows = Alarm.objects.filter(kind=kind, name__in=sorted(names), ended_at__isnull=True)
    return rows.update(ended_at=database_now())


def lasting(*, kind: str, calm_s: float) -> list[tuple[str, int | None]]:
    """Name and place of the alarms of a kind that last, but were not raised for so many seconds."""
    with reachable():
        rows = Alarm.objects.filter(kind=kind, ended_at__isnull=True)
        return list(
            rows.filter(last_at__lte=before(database_now(), seconds=calm_s)).values_list("name", "place")
        )


def trim(*, days: int = KEPT_DAYS) -> int:
    """Deletes the alarms that nobody raised for so long, unless they last; how many."""
    with reachable():
        old = Alarm.objects.filter(last_at__lt=before(database_now(), seconds=days * 86_400))
        return old.exclude(ended_at__isnull=True, kind__in=("node_low", "node_full", "suspect")).delete()[0]
