"""Rules of alarms: when they begin and end, and the object that an alarm is about.

An alarm must not flicker. A limit that was passed counts as passed until the value is well below
it (LEAVE_RATIO), and an alarm ends only after its condition was not met for a while.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

ENDS_AFTER_S = 180.0  # the condition must be unmet this long before an alarm ends
LEAVE_RATIO = 0.8  # a limit is left only below this part of it


class AlarmKind(StrEnum):
    """Kind of an alarm. It decides what the name of the alarm means (see parse_subject)."""

    UNREAD_DROPPED = "unread_dropped"
    NODE_LOW = "node_low"
    NODE_FULL = "node_full"
    NODE_FILLING = "node_filling"
    NODE_AWAY = "node_away"
    NODE_MOVED = "node_moved"
    NODE_COPIES = "node_copies"
    METADATA_MOVED = "metadata_moved"
    NOT_CLEANED = "not_cleaned"
    LAG = "lag"
    NO_CONSUMER = "no_consumer"
    DEAD_GROWING = "dead_growing"
    JOB_FAILED = "job_failed"
    CORRUPT = "corrupt"
    INCONSISTENT = "inconsistent"


class AlarmEvent(StrEnum):
    """Event of an alarm that a mail reports."""

    BEGAN = "began"
    ENDED = "ended"


# Alarms about a single event, not about a state: they end when they are acknowledged.
EVENT_KINDS = (AlarmKind.UNREAD_DROPPED, AlarmKind.NODE_MOVED, AlarmKind.METADATA_MOVED)
DISK_KINDS = (AlarmKind.NODE_LOW, AlarmKind.NODE_FULL, AlarmKind.NODE_FILLING)
NODE_KINDS = (
    AlarmKind.NODE_AWAY,
    AlarmKind.NODE_MOVED,
    AlarmKind.NODE_COPIES,
    *DISK_KINDS,
)


class Decision(Enum):
    """Effect of a check on an alarm."""

    STAY = "stay"  # the check agrees with the alarm
    WAIT = "wait"  # the check contradicts it, not yet for long enough
    TURN = "turn"  # the alarm begins or ends


def decide(
    *, lasts: bool, met: bool, pending_for_s: float | None, patience_s: float
) -> Decision:
    """Decide the effect of a check on an alarm that is active or not (`lasts`).

    `met`: the condition is met now. `pending_for_s`: for how long checks have
    contradicted the alarm, None if this is the first. `patience_s`: how long they must
    do so.

    >>> decide(lasts=False, met=True, pending_for_s=None, patience_s=0).name
    'TURN'
    >>> decide(lasts=True, met=False, pending_for_s=None, patience_s=180).name
    'WAIT'
    >>> decide(lasts=True, met=False, pending_for_s=200, patience_s=180).name
    'TURN'
    >>> decide(lasts=True, met=True, pending_for_s=200, patience_s=180).name
    'STAY'
    """
    if lasts == met:
        return Decision.STAY
    if patience_s <= 0 or (pending_for_s is not None and pending_for_s >= patience_s):
        return Decision.TURN
    return Decision.WAIT


def is_passed(value: float, limit: float) -> bool | None:
    """Return True if a limit is passed, False if not, None between, where the former state
    remains.

    >>> is_passed(100, 100), is_passed(85, 100), is_passed(79, 100)
    (True, None, False)
    """
    if value >= limit:
        return True
    return None if value > LEAVE_RATIO * limit else False


def any_passed(*answers: bool | None) -> bool | None:
    """Return True if a limit is passed, None if none is but some are between, False
    otherwise.

    >>> any_passed(None, True), any_passed(False, None), any_passed(False, False)
    (True, None, False)
    """
    if True in answers:
        return True
    return None if None in answers else False


class Subject(NamedTuple):
    """The object that an alarm is about; '' for the other fields."""

    group: str = ""
    topic: str = ""
    node: str = ""
    job: str = ""


def parse_subject(kind: str, name: str) -> Subject:
    """Return the object that the name of an alarm of this kind stands for.

    >>> parse_subject("lag", "billing/orders")
    Subject(group='billing', topic='orders', node='', job='')
    >>> parse_subject("corrupt", "orders/7").topic, parse_subject("node_away", "main").node
    ('orders', 'main')
    """
    first, _slash, second = name.partition("/")
    if kind in (AlarmKind.LAG, AlarmKind.NO_CONSUMER, AlarmKind.UNREAD_DROPPED):
        return Subject(group=first, topic=second)
    # Alarms of queues are named topic/number, but users manage the topic.
    if kind in (AlarmKind.NOT_CLEANED, AlarmKind.CORRUPT):
        return Subject(topic=first)
    if kind == AlarmKind.DEAD_GROWING:
        return Subject(group=name)
    if kind in NODE_KINDS:
        return Subject(node=name)
    return Subject(job=name) if kind == AlarmKind.JOB_FAILED else Subject()
