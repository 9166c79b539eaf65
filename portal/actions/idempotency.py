"""A form that was confirmed is carried out once, however often it is sent: by double
clicks, or gone back to.

The page that asks for the confirmation puts a fresh number into its form. Who sends the
number first claims it with a row among the web sessions, whose keys the database keeps
unique; so of two workers that get a double click one acts, without a lock. The row then
says what was done, and goes when sessions expire.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from django.contrib.sessions.backends.base import CreateError
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

FIELD = "form_number"
MAX_NUMBER_LENGTH = 100  # characters of a number


@dataclass(frozen=True, slots=True)
class EarlierResult:
    """Result of an earlier sending of the same form, and where that is seen; '' while it is
    not known yet.
    """

    said: str
    url: str


def new_number() -> str:
    return secrets.token_urlsafe(16)


def is_numbered(request: HttpRequest) -> bool:
    """Return True if a form came with a number."""
    return 0 < len(request.POST.get(FIELD, "")) <= MAX_NUMBER_LENGTH


def claim_number(request: HttpRequest) -> bool:
    """Claim the number of a form; return True if this sending is the first."""
    try:
        SessionStore(_key(request)).save(must_create=True)
    except CreateError:
        return False
    return True


def find_earlier_result(request: HttpRequest) -> EarlierResult | None:
    """Return the result of an earlier sending of this numbered form; None if this is the
    first.
    """
    row = SessionStore(_key(request))
    found = row.load()
    return (
        None
        if row.session_key is None
        else EarlierResult(found.get("said", ""), found.get("url", ""))
    )


def record_result(request: HttpRequest, *, said: str, url: str) -> None:
    """Says for later sendings what this one did."""
    row = SessionStore(_key(request))
    row["said"], row["url"] = said, url
    row.save()


def release_number(request: HttpRequest) -> None:
    """Lets the form be sent again: it was refused, so nothing was done."""
    SessionStore(_key(request)).delete()


def session_key(request: HttpRequest, new_number: str, what: str = "") -> str:
    """A key that nobody else's form has: of this person's session, this page and this
    number.
    """
    whose = (
        f"{request.session.session_key} {request.path} {new_number}{what and f' {what}'}"
    )
    return hashlib.sha256(whose.encode()).hexdigest()[:40]


def _key(request: HttpRequest) -> str:
    return session_key(request, request.POST[FIELD])
