"""Rules of alarms: when one begins and ends, what its name says, and whom it concerns.

An alarm must not flicker: a limit is left only well below it, and what ends must have been
well for a while.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

ENDS_AFTER_S = 180.0  # so long must all be well before an alarm ends
BELOW = 0.8  # a limit that was passed counts as passed down to this part of it
# tell of what happened, not of what is so: acknowledged, they end
ONCE = ("unread_dropped",)


class Decision(Enum):
    STAY = "stay"  # the look agrees with it
    WAIT = "wait"  # the look contradicts it, not yet for long enough
    TURN = "turn"  # it begins, or ends


def decide(
    *, lasts: bool, met: bool, pending_for_s: float | None, patience_s: float
) -> Decision:
    """Decide what a look does to an alarm that lasts or not, and whose cause was met or
    not.

    `pending_for_s`: for how long looks have contradicted it already, None if this is the
    first.

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
    """Return True if a limit is passed, False if not, or None in between, where it is what
    it was before.

    >>> is_passed(100, 100), is_passed(85, 100), is_passed(79, 100)
    (True, None, False)
    """
    if value >= limit:
        return True
    return None if value > BELOW * limit else False


def any_passed(*answers: bool | None) -> bool | None:
    """Return True if one of several limits is passed, None if none is but one is in
    between.

    >>> any_passed(None, True), any_passed(False, None), any_passed(False, False)
    (True, None, False)
    """
    if True in answers:
        return True
    return None if None in answers else False


class Subject(NamedTuple):
    """Subject of an alarm; '' where it is about nothing of that sort."""

    group: str = ""
    topic: str = ""
    node: str = ""
    job: str = ""


def parse_subject(kind: str, name: str) -> Subject:
    """Return the subject that the name of an alarm of this kind stands for.

    >>> parse_subject("lag", "billing/orders")
    Subject(group='billing', topic='orders', node='', job='')
    >>> parse_subject("corrupt", "orders/7").topic, parse_subject("node_away", "main").node
    ('orders', 'main')
    """
    first, _slash, second = name.partition("/")
    if kind in ("lag", "no_consumer", "unread_dropped"):
        return Subject(group=first, topic=second)
    if kind in ("not_cleaned", "corrupt"):
        return Subject(topic=first)
    if kind == "dead_growing":
        return Subject(group=name)
    if kind.startswith("node_"):
        return Subject(node=name)
    return Subject(job=name) if kind == "job_failed" else Subject()
