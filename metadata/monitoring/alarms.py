"""Alarms: they begin when something is met, and end when it was mended for a while.

What meets something itself calls `raise_alarm` and `end_alarms`; what looks at everything of a
kind now and then calls `reconcile` with all that it found. Both write one row for each cause at
each thing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import F, Q

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import before, database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.models import Alarm
from metadata.rules import alarm_rules
from metadata.rules.alarm_rules import ENDS_AFTER_S, ONCE, Decision, Subject
from metadata.rules.alarm_texts import stored_facts

KEPT_DAYS = 90
QUIET_S = 7 * 86_400.0  # after which what happened once is over, acknowledged or not
MOST = 2_000  # of a kind that are looked after at once: the others wait
FIELDS = (
    "detail",
    "facts",
    "last_at",
    "ended_at",
    "since_at",
    "pending_since",
    "times",
    "acknowledged_at",
    "acknowledged_by",
)


@dataclass(slots=True)
class AlarmFindings:
    """Findings of a look: {name of the alarm: detail}, the worst first; and what it could
    not tell.
    """

    found: dict[str, str] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)

    def add(self, name: str, detail: str, *, is_so: bool | None = True) -> None:
        """One thing that is so, is not, or about which nothing is clear (None)."""
        if is_so:
            self.found[name] = detail
        elif is_so is None:
            self.unclear.add(name)


@transactional
def raise_alarm(
    *, kind: str, name: str, detail: str, count: int = 0, place: int | None = None
) -> None:
    """Record that something is so (again), at once; `count` is added to what was counted
    before.
    """
    now = database_now()
    given = {
        "detail": detail[:1000],
        "facts": stored_facts(detail),
        "place": place,
        "last_at": now,
    }
    known = Alarm.objects.filter(kind=kind, name=name)

    def renew() -> bool:
        known.filter(ended_at__isnull=False).update(
            since_at=now,
            ended_at=None,
            times=F("times") + 1,
            acknowledged_at=None,
            acknowledged_by="",
        )
        return bool(known.update(count=F("count") + count, pending_since=None, **given))

    # By the number of rows that changed: one that was there a moment ago may have been
    # pruned.
    if not renew():
        new = {**given, "first_at": now, "ended_at": now}
        # somebody else may make it now
        Alarm.objects.get_or_create(kind=kind, name=name, defaults=new)
        renew()


@transactional
def end_alarms(*, kind: str, names: Collection[str]) -> int:
    """Record that it is so no more, at once; how many alarms ended."""
    rows = Alarm.objects.filter(kind=kind, name__in=sorted(names), ended_at__isnull=True)
    return rows.update(ended_at=database_now(), pending_since=None)


@transactional
def reconcile(
    *,
    kind: str,
    found: Mapping[str, str],
    unclear: Collection[str] = (),
    begins_after_s: float = 0.0,
    ends_after_s: float = ENDS_AFTER_S,
) -> int:
    """Make the alarms of a kind agree with what a look at everything found; return how many
    began or ended.

    `found`: {name: detail} of where it is so; a detail is a text of alarm_texts. Where it
    is `unclear`, all stays as it is. What is found must have been so for `begins_after_s`,
    what is not for
    `ends_after_s`.
    """
    now = database_now()
    some = dict(list(found.items())[:MOST])
    concerned = (
        Q(ended_at__isnull=True) | Q(pending_since__isnull=False) | Q(name__in=list(some))
    )
    rows = {
        row.name: row
        for row in Alarm.objects.select_for_update().filter(concerned, kind=kind)
    }
    fresh = {name: _new(kind, name, some[name], now) for name in some if name not in rows}
    turned = 0
    for name, row in {**rows, **fresh}.items():
        if name not in found and name in unclear:
            continue
        if name in some:
            row.detail, row.facts, row.last_at = (
                some[name][:1000],
                stored_facts(some[name]),
                now,
            )
        patience_s = begins_after_s if row.ended_at else ends_after_s
        turned += _turn(row, name in found, patience_s, now)
    Alarm.objects.bulk_create(fresh.values(), batch_size=500, ignore_conflicts=True)
    Alarm.objects.bulk_update(rows.values(), FIELDS, batch_size=200)
    return turned


def _new(kind: str, name: str, detail: str, now: datetime) -> Alarm:
    given = {"detail": detail[:1000], "facts": stored_facts(detail)}
    return Alarm(kind=kind, name=name, **given, first_at=now, last_at=now, ended_at=now)


def _turn(row: Alarm, met: bool, patience_s: float, now: datetime) -> bool:
    """Change a row as a look demands; whether it began or ended."""
    since = row.pending_since
    decided = alarm_rules.decide(
        lasts=row.ended_at is None,
        met=met,
        pending_for_s=(now - since).total_seconds() if since else None,
        patience_s=patience_s,
    )
    row.pending_since = (since or now) if decided is Decision.WAIT else None
    if decided is not Decision.TURN:
        return False
    if met:
        row.since_at, row.ended_at, row.times = now, None, row.times + 1
        row.acknowledged_at, row.acknowledged_by = None, ""
    else:
        row.ended_at = now
    return True


@transactional
def acknowledge(*, kind: str, name: str, actor: Actor) -> None:
    """Record that somebody looks after an alarm; one that tells of what happened once is
    over with that.

    Needs `admin` on everything, or `manage` on the group or topic that it is about. Raises
    Forbidden, NotFound, Conflict when it has ended, or somebody was faster.
    """
    about = alarm_rules.parse_subject(kind, name)
    require_manage(actor, about)
    rows = Alarm.objects.filter(kind=kind, name=name)
    if not rows.exists():
        raise NotFound(f"There is no alarm {kind} at {name}.")
    lasting = rows.filter(ended_at__isnull=True, acknowledged_at__isnull=True)
    now = database_now()
    values = {"acknowledged_at": now, "acknowledged_by": actor.name}
    if not lasting.update(**values, **({"ended_at": now} if kind in ONCE else {})):
        raise Conflict(f"The alarm {kind} at {name} has ended or is already acknowledged.")
    audit.record(
        actor=actor, verb="acknowledge", kind="alarm", name=name, after={"alarm": kind}
    )


def list_acknowledgeable(*, actor: Actor) -> list[tuple[str, str]]:
    """Return kind and name of the active, unacknowledged alarms that the actor may
    acknowledge.
    """
    with reachable():
        rows = Alarm.objects.filter(
            since_at__isnull=False, ended_at__isnull=True, acknowledged_at__isnull=True
        )
        names = list(rows.order_by("kind", "name").values_list("kind", "name")[:MOST])
    return [
        (kind, name)
        for kind, name in names
        if may_manage(actor, alarm_rules.parse_subject(kind, name))
    ]


def acknowledge_all(*, chosen: Collection[tuple[str, str]], actor: Actor) -> int:
    """Acknowledge some alarms, each as `acknowledge` does; return how many still could be.

    Raises Forbidden at the first that the actor may not acknowledge.
    """
    count = 0
    for kind, name in chosen:
        with suppress(Conflict, NotFound):  # it ended, or somebody was faster
            acknowledge(kind=kind, name=name, actor=actor)
            count += 1
    return count


def may_manage(actor: Actor, about: Subject) -> bool:
    if access.may(actor, "admin", "*"):
        return True
    named = [("group", about.group), ("topic", about.topic)]
    return any(
        name and access.may(actor, "manage", name, what=what) for what, name in named
    )


def require_manage(actor: Actor, about: Subject) -> None:
    """Raise Forbidden unless the actor looks after what an alarm is about."""
    if not may_manage(actor, about):
        what, name = (
            ("group", about.group) if about.group else ("topic", about.topic or "*")
        )
        access.require(
            actor, "manage" if about.group or about.topic else "admin", name, what=what
        )


def end_quiet_alarms() -> int:
    """End what happened once and was not raised again for a week; return how many."""
    with reachable():
        now = database_now()
        rows = Alarm.objects.filter(kind__in=ONCE, ended_at__isnull=True)
        return rows.filter(last_at__lt=before(now, seconds=QUIET_S)).update(ended_at=now)


def list_calm_alarms(*, kind: str, calm_s: float) -> list[tuple[str, int | None]]:
    """Name and place of the alarms of a kind that last, but were not raised for so many
    seconds.
    """
    with reachable():
        rows = Alarm.objects.filter(kind=kind, ended_at__isnull=True)
        return list(
            rows.filter(last_at__lte=before(database_now(), seconds=calm_s)).values_list(
                "name", "place"
            )
        )


# One that lasts stays. Mails go with their alarm: prune them first, so that few are left.
prune = PruneRule(
    Alarm.objects.exclude(
        ended_at__isnull=True, kind__in=("node_low", "node_full", "corrupt")
    ),
    at="last_at",
    days=KEPT_DAYS,
)
