"""Limits of a login's length: not for ever, and not without doing anything.

A session ends when nobody opened a page for so long (CATMQ_SESSION_IDLE_MINUTES), and so
long after its login (CATMQ_SESSION_HOURS) in any case. Pages that renew themselves do not
count as somebody's doing.
"""

from __future__ import annotations

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest

from metadata.config import config
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable

BEGAN = "began_at_ms"
HOUR_MS = 3_600_000


def has_ended(request: HttpRequest) -> bool:
    """Return True if the session began too long ago; notes its begin if not known. Needs
    metadata.
    """
    with reachable():
        now = ms(database_now())
    began = request.session.setdefault(BEGAN, now)
    return not 0 <= now - began < config.session_hours * HOUR_MS


def prolong(request: HttpRequest) -> None:
    """Has the session end later, if somebody who is logged in opened a page; it is saved
    with the answer.
    """
    polled = request.headers.get("HX-Request") == "true"
    session = getattr(request, "session", None)
    if session is not None and session.accessed and not polled and SESSION_KEY in session:
        session.modified = True
