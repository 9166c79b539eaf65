"""A confirmed form is executed once, even if it is submitted again.

A double click or the back button submits a form again. The confirmation page contains a
fresh number. The first submission claims the number with a row among the web sessions,
whose keys are unique in the database. So of two workers that get a double click only the
first acts, without a lock. The row keeps the result and is deleted when sessions expire.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from django.contrib.sessions.backends.base import CreateError
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

FIELD = "form_number"
# A longer number was not made by new_number().
MAX_NUMBER_LENGTH = 100


@dataclass(frozen=True, slots=True)
class EarlierResult:
    """Result of an earlier submission of a form: its message, and the URL of the effect.

    Both are '' while that submission is running.
    """

    message: str
    url: str


def new_number() -> str:
    # A number that came twice would be answered as a repeat of the earlier form.
    return secrets.token_urlsafe(16)


def is_numbered(request: HttpRequest) -> bool:
    """Return True if a form was submitted with a number."""
    return 0 < len(request.POST.get(FIELD, "")) <= MAX_NUMBER_LENGTH


def claim_number(request: HttpRequest) -> bool:
    """Claim the number of a form. Return True if this submission is the first."""
    try:
        SessionStore(_request_key(request)).save(must_create=True)
    except CreateError:
        return False
    return True


def find_earlier_result(request: HttpRequest) -> EarlierResult | None:
    """Return the result of an earlier submission of this form, None if this is the first."""
    session = SessionStore(_request_key(request))
    values = session.load()
    return (
        None
        if session.session_key is None
        else EarlierResult(values.get("said", ""), values.get("url", ""))
    )


def record_result(request: HttpRequest, *, message: str, url: str) -> None:
    """Record the result of this submission for repeated submissions."""
    session = SessionStore(_request_key(request))
    session["said"], session["url"] = message, url
    session.save()


def release_number(request: HttpRequest) -> None:
    """Let the form be submitted again. It was refused, so nothing was done."""
    SessionStore(_request_key(request)).delete()


def session_key(request: HttpRequest, number: str, purpose: str = "") -> str:
    """Return a session key that belongs to this session, page, form number and purpose.

    Other users cannot compute it, because the key of the web session is secret.
    """
    identity = (
        f"{request.session.session_key} {request.path} {number}{purpose and f' {purpose}'}"
    )
    # Hashed, because a session key has at most 40 characters.
    return hashlib.sha256(identity.encode()).hexdigest()[:40]


def _request_key(request: HttpRequest) -> str:
    return session_key(request, request.POST[FIELD])
