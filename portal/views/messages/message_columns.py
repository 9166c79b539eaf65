"""Columns of a list of messages. The URL chooses them, and a cookie remembers the choice."""

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

# URL parameter with the names of the columns, separated by commas.
COLUMNS_PARAMETER = "columns"
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
# A longer body is shown only on the page of its message.
MAX_FOLDED_BYTES = 4096
MONTH_S = 30 * 86_400


def chosen_columns(request: HttpRequest) -> tuple[str, ...]:
    """Return the names of the visible columns in order: from the URL, the cookie, or the
    default.
    """
    value = request.GET.get(COLUMNS_PARAMETER) or request.COOKIES.get(COOKIE, "")
    # The order of ALL_COLUMNS applies, whatever the order in the URL.
    names = value.split(",")
    return tuple(name for name in ALL_COLUMNS if name in names) or DEFAULT_COLUMNS


def remember_columns(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Let the browser keep the columns chosen in the URL."""
    if request.GET.get(COLUMNS_PARAMETER):
        value = ",".join(chosen_columns(request))
        response.set_cookie(COOKIE, value, max_age=MONTH_S, samesite="Lax", httponly=True)
    return response


def column_links(request: HttpRequest) -> list[Link]:
    """Return a link for each column that shows or hides it. The last visible column stays."""
    visible = chosen_columns(request)
    labels = {name: column.label for name, column in _columns("").items()}
    links = []
    for name in ALL_COLUMNS:
        # A link toggles its column. The last column cannot be hidden.
        columns = [
            other for other in ALL_COLUMNS if (other in visible) != (other == name)
        ] or list(visible)
        href = url_with(request, **{COLUMNS_PARAMETER: ",".join(columns)})
        links.append(Link(labels[name], href, "on" if name in visible else ""))
    return links


def messages_table(
    topic: str, messages: Sequence[StoredMessage], names: Sequence[str]
) -> Table:
    """Return messages as a table with the named columns, a line per message."""
    columns = _columns(topic)
    hint = EmptyHint(
        _("No matching messages so far. Send one:"), f"catmq send {topic} 'hello'"
    )
    return simple_table(
        [columns["message"], *(columns[name] for name in names)], messages, hint
    )


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
        "body": Column(_("Body"), _body_cell, lead=True),
        "headers": Column(
            _("Headers"),
            lambda row: long(
                ", ".join(f"{k}: {v}" for k, v in sorted((row.headers or {}).items()))
                or None
            ),
        ),
        "tag": Column(_("Tag"), lambda row: text(row.tag)),
        "trace_id": Column(_("Trace id"), lambda row: long(row.trace_id)),
        "attempt": Column(_("Attempt"), lambda row: number(row.attempt), right=True),
        "size": Column(
            _("Size"), lambda row: Cell(len(row.body) or None, "size"), right=True
        ),
    }


def _body_cell(message: StoredMessage) -> Cell:
    """Return the beginning of a body. A short body unfolds to the whole."""
    preview = bodies.preview_line(message.body)
    if not 0 < len(message.body) <= MAX_FOLDED_BYTES:
        return long(preview or None)
    return folded(
        preview, bodies.render_body(message.body).text, fold_id=message.message_id
    )
