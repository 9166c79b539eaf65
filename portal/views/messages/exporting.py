"""Download of found messages as JSON lines or CSV, with the content that the page shows."""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage
from metadata.errors import Invalid
from portal.auth.access import actor
from portal.kit.pages import Link, page_url
from portal.kit.tables import url_with, without_formula
from portal.templatetags.formats import iso_time
from portal.views.messages import finding

# Messages in a file.
MAX_MESSAGES = 1_000
CONTENT_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
FIELD_NAMES = (
    "message_id", "queue", "offset", "stored_at", "key", "tag", "trace_id", "attempt",
    "headers", "body",
    "body_base64",
)  # fmt: skip


def download_links(request: HttpRequest) -> list[Link]:
    """Return links that download the found messages."""
    page = page_url("messages-download")
    return [
        Link(label, page + url_with(request, format=kind, tail="", columns=""))
        for kind, label in (("jsonl", _("JSON lines")), ("csv", "CSV"))
    ]


def download(request: HttpRequest) -> HttpResponse:
    """Return the file. Its name ends in `-part` if more messages match."""
    kind = request.GET.get("format", "jsonl")
    if kind not in CONTENT_TYPES:
        raise Invalid.field("format", _("must be one of: %s") % ", ".join(CONTENT_TYPES))
    query = finding.fields(request)
    if not query["topic"]:
        raise Invalid.field("topic", _("is required"))
    messages = finding.collect(query, limit=MAX_MESSAGES, actor=actor(request))
    response = HttpResponse(content_type=CONTENT_TYPES[kind])
    # The file name shows that the file is incomplete.
    suffix = "-part" if messages.next_parameters else ""
    response["Content-Disposition"] = (
        f'attachment; filename="{query["topic"]}-messages{suffix}.{kind}"'
    )
    rows = (_message_row(message, masked=messages.masked) for message in messages.messages)
    if kind == "csv":
        writer = csv.writer(response)
        writer.writerow(FIELD_NAMES)
        for row in rows:
            headers = row["headers"]
            row["headers"] = json.dumps(headers, ensure_ascii=False) if headers else None
            writer.writerow([without_formula(row.get(name)) for name in FIELD_NAMES])
    else:
        response.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return response


def _message_row(message: StoredMessage, *, masked: bool) -> dict[str, Any]:
    """Return a message by column. A masked message has no `body`, so that it does not look
    empty.
    """
    row = {
        "message_id": message.message_id,
        "queue": message.queue,
        "offset": message.offset,
        "stored_at": iso_time(message.stored_at_ms),
        "key": message.key,
        "tag": message.tag,
        "trace_id": message.trace_id,
        "attempt": message.attempt,
        "headers": message.headers,
    }
    return row if masked else {**row, **_body_columns(message.body)}


def _body_columns(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        # JSON and CSV hold text only.
        return {"body_base64": b64encode(body).decode("ascii")}
