"""Columns of a list of messages: which are shown is chosen in the URL, and remembered in a
cookie.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage
from portal.kit import bodies, cells
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    EmptyHint,
    Table,
    code,
    folded,
    long,
    number,
    simple_table,
    text,
    timestamp,
    url_with,
)

COLUMNS_PARAMETER = "columns"  # word of the URL: names with commas
COOKIE = "message_columns"
DEFAULT_COLUMNS = ("stored", "key", "body", "tag", "size")
ALL_COLUMNS = (
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
MAX_FOLDED_BYTES = 4096  # a longer body is shown on the page of its message
MONTH_S = 30 * 86_400


def chosen_columns(request: HttpRequest) -> tuple[str, ...]:
    """Return the names of the columns that are shown, in order: of the URL, the cookie, or
    the usual.
    """
    asked = request.GET.get(COLUMNS_PARAMETER) or request.COOKIES.get(COOKIE, "")
    names = asked.split(",")
    return tuple(name for name in ALL_COLUMNS if name in names) or DEFAULT_COLUMNS


def remember_columns(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Have the browser keep the columns that the URL chose."""
    if request.GET.get(COLUMNS_PARAMETER):
        value = ",".join(chosen_columns(request))
        response.set_cookie(COOKIE, value, max_age=MONTH_S, samesite="Lax", httponly=True)
    return response


def column_links(request: HttpRequest) -> list[Link]:
    """Return a link for each column that shows or hides it; the last one that is shown
    stays.
    """
    shown = chosen_columns(request)
    labels = {name: column.label for name, column in _columns("").items()}
    found = []
    for name in ALL_COLUMNS:
        others = [one for one in ALL_COLUMNS if (one in shown) != (one == name)] or list(
            shown
        )
        href = url_with(request, **{COLUMNS_PARAMETER: ",".join(others)})
        found.append(Link(labels[name], href, "on" if name in shown else ""))
    return found


def messages_table(
    topic: str, found: Sequence[StoredMessage], names: Sequence[str]
) -> Table:
    """Return messages as a table with the named columns, one line each."""
    known = _columns(topic)
    hint = EmptyHint(
        _("No matching messages so far. Send one:"), f"catmq send {topic} 'hello'"
    )
    return simple_table([known["message"], *(known[name] for name in names)], found, hint)


def _columns(topic: str) -> dict[str, Column[StoredMessage]]:
    return {
        "message": Column(
            _("Message"),
            lambda row: code(row.message_id, page_url("message", topic, row.message_id)),
        ),
        "stored": Column(_("Stored"), lambda row: timestamp(row.stored_at_ms)),
        "queue": Column(_("Queue"), lambda row: cells.queue(row.queue)),
        "offset": Column(_("Offset"), lambda row: number(row.offset), right=True),
        "key": Column(_("Key"), lambda row: long(row.key)),
        "body": Column(_("Body"), _folded, lead=True),
        "headers": Column(_("Headers"), _headers),
        "tag": Column(_("Tag"), lambda row: text(row.tag)),
        "trace_id": Column(_("Trace id"), lambda row: long(row.trace_id)),
        "attempt": Column(_("Attempt"), lambda row: number(row.attempt), right=True),
        "size": Column(
            _("Size"), lambda row: Cell(len(row.body) or None, "size"), right=True
        ),
    }


def _folded(one: StoredMessage) -> Cell:
    """Return the beginning of a body, which unfolds to the whole if that is short."""
    preview = bodies.preview_line(one.body)
    if not 0 < len(one.body) <= MAX_FOLDED_BYTES:
        return long(preview or None)
    return folded(preview, bodies.render_body(one.body).text, fold_id=one.message_id)


def _headers(one: StoredMessage) -> Cell:
    headers = sorted((one.headers or {}).items())
    return long(", ".join(f"{name}: {value}" for name, value in headers) or None)
