"""Limits of a login session: it ends after a time without use, and after a time in any
case.

The limits are CATMQ_SESSION_IDLE_MINUTES and CATMQ_SESSION_HOURS. Pages that refresh
themselves do not count as use.
"""

from __future__ import annotations

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest

from metadata.config import config
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable

# Session key of the time of the login.
BEGAN = "began_at_ms"
HOUR_MS = 3_600_000


def has_ended(request: HttpRequest) -> bool:
    """Return True if the session began too long ago. Notes the begin of a new session.

    Raises MetadataUnavailable.
    """
    with reachable():
        now_ms = ms(database_now())
    began_ms = request.session.setdefault(BEGAN, now_ms)
    return not 0 <= now_ms - began_ms < config.session_hours * HOUR_MS


def prolong(request: HttpRequest) -> None:
    """Extend the session of a logged-in user who opened a page. It is saved with the
    response.
    """
    is_refresh = request.headers.get("HX-Request") == "true"
    session = getattr(request, "session", None)
    if (
        session is not None
        and session.accessed
        and not is_refresh
        and SESSION_KEY in session
    ):
        session.modified = True
