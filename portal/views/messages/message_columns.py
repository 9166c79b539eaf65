"""Columns of a list of messages: which are shown is chosen in the URL, and remembered in a
cookie.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage
from portal.kit import bodies, rows
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Empty,
    Table,
    code,
    fold,
    long,
    number,
    plain,
    text,
    when,
    with_words,
)

COLUMNS = "columns"  # word of the URL: names with commas
COOKIE = "message_columns"
USUAL = ("stored", "key", "body", "tag", "size")
ALL = (
    "stored",
    "queue",
    "offset",
    "key",
    "body",
    "headers",
    "tag",
    "trace_id",
    "attempt",
    "size",
)
FOLDED_BYTES = 4096  # a longer body is shown on the page of its message
MONTH_S = 30 * 86_400


def chosen(request: HttpRequest) -> tuple[str, ...]:
    """Return the names of the columns that are shown, in order: of the URL, the cookie, or
    the usual.
    """
    asked = request.GET.get(COLUMNS) or request.COOKIES.get(COOKIE, "")
    names = asked.split(",")
    return tuple(name for name in ALL if name in names) or USUAL


def remember(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Have the browser keep the columns that the URL chose."""
    if request.GET.get(COLUMNS):
        value = ",".join(chosen(request))
        response.set_cookie(COOKIE, value, max_age=MONTH_S, samesite="Lax", httponly=True)
    return response


def choices(request: HttpRequest) -> list[Link]:
    """Return a link for each column that shows or hides it; the last one that is shown
    stays.
    """
    shown = chosen(request)
    labels = {name: column.label for name, column in _columns("").items()}
    found = []
    for name in ALL:
        others = [one for one in ALL if (one in shown) != (one == name)] or list(shown)
        href = with_words(request, **{COLUMNS: ",".join(others)})
        found.append(Link(labels[name], href, "on" if name in shown else ""))
    return found


def table(topic: str, found: Sequence[StoredMessage], names: Sequence[str]) -> Table:
    """Return messages as a table with the named columns, one line each."""
    known = _columns(topic)
    hint = Empty(_("No matching messages so far. Send one:"), f"catmq send {topic} 'hello'")
    return plain([known["message"], *(known[name] for name in names)], found, hint)


def _columns(topic: str) -> dict[str, Column[StoredMessage]]:
    return {
        "message": Column(
            _("Message"),
            lambda one: code(one.message_id, to("message", topic, one.message_id)),
        ),
        "stored": Column(_("Stored"), lambda one: when(one.stored_at_ms)),
        "queue": Column(_("Queue"), lambda one: rows.queue(one.queue)),
        "offset": Column(_("Offset"), lambda one: number(one.offset), right=True),
        "key": Column(_("Key"), lambda one: long(one.key)),
        "body": Column(_("Body"), _folded, lead=True),
        "headers": Column(_("Headers"), _headers),
        "tag": Column(_("Tag"), lambda one: text(one.tag)),
        "trace_id": Column(_("Trace id"), lambda one: long(one.trace_id)),
        "attempt": Column(_("Attempt"), lambda one: number(one.attempt), right=True),
        "size": Column(
            _("Size"), lambda one: Cell(len(one.body) or None, "size"), right=True
        ),
    }


def _folded(one: StoredMessage) -> Cell:
    """Return the beginning of a body, which unfolds to the whole if that is short."""
    preview = bodies.preview(one.body)
    if not 0 < len(one.body) <= FOLDED_BYTES:
        return long(preview or None)
    return fold(preview, bodies.shown(one.body).shown, place=one.message_id)


def _headers(one: StoredMessage) -> Cell:
    headers = sorted((one.headers or {}).items())
    return long(", ".join(f"{name}: {value}" for name, value in headers) or None)
