"""Alarms: they begin when a condition is met, and end when it was not met for a while.

Code that meets a condition calls `raise_alarm` and `end_alarms`. A job that checks
every object of a kind calls `reconcile` with all that it found. Both write a row for
each cause at each object.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from django.db.models import F, Q

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import before, database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.grouping import grouped
from metadata.models import Alarm
from metadata.rules import alarm_rules
from metadata.rules.alarm_rules import (
    ENDS_AFTER_S,
    EVENT_KINDS,
    AlarmKind,
    Decision,
    Subject,
)
from metadata.rules.alarm_texts import stored_facts
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import Right

KEPT_DAYS = 90
QUIET_S = 7 * 86_400.0  # alarms about single events end after this time
MAX_ALARMS = 2_000  # of a kind in a call; the others wait for the next
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
    """Result of a check: alarms that should be active, as {name: detail}, worst first.

    `unclear` has the names that could not be checked.
    """

    active: dict[str, str] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)

    def add(self, name: str, detail: str, *, is_so: bool | None = True) -> None:
        """Add the result for an object: alarm, no alarm, or not known (None)."""
        if is_so:
            self.active[name] = detail
        elif is_so is None:
            self.unclear.add(name)


@transactional
def raise_alarm(
    *, kind: str, name: str, detail: str, count: int = 0, place: int | None = None
) -> None:
    """Begin an alarm, or renew it if it is active. `count` is added to the former count.

    `place` is the offset that the alarm is about, if any.
    """
    now = database_now()
    columns = {
        "detail": detail[:1000],
        "facts": stored_facts(detail),
        "place": place,
        "last_at": now,
    }
    alarm_rows = Alarm.objects.filter(kind=kind, name=name)

    def renew() -> bool:
        alarm_rows.filter(ended_at__isnull=False).update(
            since_at=now,
            ended_at=None,
            times=F("times") + 1,
            acknowledged_at=None,
            acknowledged_by="",
        )
        return bool(
            alarm_rows.update(count=F("count") + count, pending_since=None, **columns)
        )

    # renew() goes by the number of changed rows, because a row that existed a moment ago
    # may have been pruned.
    if not renew():
        defaults = {**columns, "first_at": now, "ended_at": now}
        # Another process may insert the row at the same time.
        Alarm.objects.get_or_create(kind=kind, name=name, defaults=defaults)
        renew()


@transactional
def end_alarms(*, kind: str, names: Collection[str]) -> int:
    """End alarms at once. Return how many were active."""
    rows = Alarm.objects.filter(kind=kind, name__in=sorted(names), ended_at__isnull=True)
    return rows.update(ended_at=database_now(), pending_since=None)


@transactional
def reconcile(
    *,
    kind: str,
    active: Mapping[str, str],
    unclear: Collection[str] = (),
    begins_after_s: float = 0.0,
    ends_after_s: float = ENDS_AFTER_S,
) -> int:
    """Make the alarms of a kind agree with the result of a check. Return how many began or
    ended.

    `active` maps the name of each alarm that should be active to its detail, a text of
    alarm_texts. Alarms named in `unclear` stay as they are. A condition must have been
    met for `begins_after_s` seconds before its alarm begins, and not met for
    `ends_after_s` before it ends.
    """
    now = database_now()
    # The worst come first. If there are too many, the others wait until these have ended.
    limited = dict(list(active.items())[:MAX_ALARMS])
    concerned = (
        Q(ended_at__isnull=True)
        | Q(pending_since__isnull=False)
        | Q(name__in=list(limited))
    )
    # Locked: raise_alarm() or a user may change the same alarms at this moment.
    rows = {
        row.name: row
        for row in Alarm.objects.select_for_update().filter(concerned, kind=kind)
    }
    new_rows = {
        # Not begun yet: it is ended until the condition has lasted long enough.
        name: Alarm(
            kind=kind,
            name=name,
            detail=detail[:1000],
            facts=stored_facts(detail),
            first_at=now,
            last_at=now,
            ended_at=now,
        )
        for name, detail in limited.items()
        if name not in rows
    }
    changed = 0
    for name, row in {**rows, **new_rows}.items():
        if name not in active and name in unclear:
            continue
        if name in limited:
            row.detail, row.last_at = limited[name][:1000], now
            row.facts = stored_facts(limited[name])
        met, pending_since = name in active, row.pending_since
        decision = alarm_rules.decide(
            lasts=row.ended_at is None,
            met=met,
            pending_for_s=(now - pending_since).total_seconds() if pending_since else None,
            patience_s=begins_after_s if row.ended_at else ends_after_s,
        )
        row.pending_since = (pending_since or now) if decision is Decision.WAIT else None
        if decision is not Decision.TURN:
            continue
        changed += 1
        if met:
            row.since_at, row.ended_at, row.times = now, None, row.times + 1
            # An acknowledgement of the former occurrence does not count for the new one.
            row.acknowledged_at, row.acknowledged_by = None, ""
        else:
            row.ended_at = now
    # If another process has inserted a row meanwhile, the next check renews that.
    Alarm.objects.bulk_create(new_rows.values(), batch_size=500, ignore_conflicts=True)
    Alarm.objects.bulk_update(rows.values(), FIELDS, batch_size=200)
    return changed


@transactional
def acknowledge(*, kind: str, name: str, actor: Actor) -> None:
    """Acknowledge an alarm. An alarm about a single event ends with that.

    Needs `admin` on everything, or `manage` on the group or topic that the alarm is
    about. Raises Forbidden, NotFound, and Conflict if it has ended or is acknowledged
    already.
    """
    subject = alarm_rules.parse_subject(kind, name)
    require_manage(actor, subject)
    rows = Alarm.objects.filter(kind=kind, name=name)
    if not rows.exists():
        raise NotFound(f"There is no alarm {kind} at {name}.")
    unacknowledged = rows.filter(ended_at__isnull=True, acknowledged_at__isnull=True)
    now = database_now()
    # The conditions are part of the UPDATE, so only the first of two users acknowledges.
    values = {"acknowledged_at": now, "acknowledged_by": actor.name}
    if not unacknowledged.update(
        **values, **({"ended_at": now} if kind in EVENT_KINDS else {})
    ):
        raise Conflict(f"The alarm {kind} at {name} has ended or is already acknowledged.")
    audit.record(
        actor=actor, verb=Verb.ACKNOWLEDGE, kind="alarm", name=name, after={"alarm": kind}
    )


def list_acknowledgeable(*, actor: Actor) -> list[tuple[str, str]]:
    """Return (kind, name) of active, unacknowledged alarms that the actor may acknowledge."""
    with reachable():
        rows = Alarm.objects.filter(
            since_at__isnull=False, ended_at__isnull=True, acknowledged_at__isnull=True
        )
        names = list(rows.order_by("kind", "name").values_list("kind", "name")[:MAX_ALARMS])
    return [
        (kind, name)
        for kind, name in names
        if may_manage(actor, alarm_rules.parse_subject(kind, name))
    ]


def list_unacknowledged() -> dict[str, list[str]]:
    """Return the names of active alarms that nobody has acknowledged, by kind. Raises
    MetadataUnavailable.
    """
    with reachable():
        rows = Alarm.objects.filter(ended_at__isnull=True, acknowledged_at__isnull=True)
        names = rows.order_by("kind", "name").values_list("kind", "name")[:MAX_ALARMS]
        return grouped(names)


def acknowledge_all(*, chosen: Collection[tuple[str, str]], actor: Actor) -> int:
    """Acknowledge alarms, each as `acknowledge` does. Return how many were acknowledged.

    Raises Forbidden at the first that the actor may not acknowledge.
    """
    count = 0
    for kind, name in chosen:
        with suppress(Conflict, NotFound):  # it ended, or is acknowledged already
            acknowledge(kind=kind, name=name, actor=actor)
            count += 1
    return count


def may_manage(actor: Actor, subject: Subject) -> bool:
    """Return True if the actor has `admin` on everything, or `manage` on the alarm's subject."""
    if access.may(actor, Right.ADMIN, "*"):
        return True
    resources = [("group", subject.group), ("topic", subject.topic)]
    return any(
        name and access.may(actor, Right.MANAGE, name, what=kind)
        for kind, name in resources
    )


def require_manage(actor: Actor, subject: Subject) -> None:
    """Raise Forbidden unless may_manage()."""
    if not may_manage(actor, subject):
        kind, name = (
            ("group", subject.group) if subject.group else ("topic", subject.topic or "*")
        )
        access.require(
            actor,
            Right.MANAGE if subject.group or subject.topic else Right.ADMIN,
            name,
            what=kind,
        )


def end_quiet_alarms() -> int:
    """End alarms about single events that were not raised for a week. Return how many."""
    with reachable():
        now = database_now()
        rows = Alarm.objects.filter(kind__in=EVENT_KINDS, ended_at__isnull=True)
        return rows.filter(last_at__lt=before(now, seconds=QUIET_S)).update(ended_at=now)


def list_calm_alarms(*, kind: str, calm_s: float) -> list[tuple[str, int | None]]:
    """Return (name, place) of active alarms of a kind that were not raised for `calm_s`
    seconds.
    """
    with reachable():
        rows = Alarm.objects.filter(kind=kind, ended_at__isnull=True)
        return list(
            rows.filter(last_at__lte=before(database_now(), seconds=calm_s)).values_list(
                "name", "place"
            )
        )


# Active alarms of these kinds stay. Notifications are deleted with their alarm, so they
# are pruned first and few are left by then.
prune = PruneRule(
    Alarm.objects.exclude(
        ended_at__isnull=True,
        kind__in=(AlarmKind.NODE_LOW, AlarmKind.NODE_FULL, AlarmKind.CORRUPT),
    ),
    at="last_at",
    days=KEPT_DAYS,
)
