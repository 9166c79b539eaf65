"""Download of the messages that were found, as JSON lines or CSV: what the page shows, and
not more.
"""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from collections.abc import Iterable
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

MAX_MESSAGES = 1_000  # messages of a file
CONTENT_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
FIELD_NAMES = (
    "message_id", "queue", "offset", "stored_at", "key", "tag", "trace_id", "attempt",
    "headers", "body",
    "body_base64",
)  # fmt: skip


def download_links(request: HttpRequest) -> list[Link]:
    """Return the downloads of what a page shows."""
    page = page_url("messages-download")
    return [
        Link(label, page + url_with(request, format=kind, tail="", columns=""))
        for kind, label in (("jsonl", _("JSON lines")), ("csv", "CSV"))
    ]


def download(request: HttpRequest) -> HttpResponse:
    """The file. Its name ends in `-part` if there are more messages than it holds."""
    kind = request.GET.get("format", "jsonl")
    if kind not in CONTENT_TYPES:
        raise Invalid.field("format", _("must be one of: %s") % ", ".join(CONTENT_TYPES))
    asked = finding.fields(request)
    if not asked["topic"]:
        raise Invalid.field("topic", _("is required"))
    found = finding.collect(asked, most=MAX_MESSAGES, actor=actor(request))
    response = HttpResponse(content_type=CONTENT_TYPES[kind])
    part = "-part" if found.following else ""
    response["Content-Disposition"] = (
        f'attachment; filename="{asked["topic"]}-messages{part}.{kind}"'
    )
    rows = (_row(one, masked=found.masked) for one in found.messages)
    if kind == "csv":
        _write_csv(response, rows)
    else:
        response.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return response


def _write_csv(response: HttpResponse, rows: Iterable[dict[str, Any]]) -> None:
    written = csv.writer(response)
    written.writerow(FIELD_NAMES)
    for row in rows:
        headers = row["headers"]
        row["headers"] = json.dumps(headers, ensure_ascii=False) if headers else None
        written.writerow([without_formula(row.get(name)) for name in FIELD_NAMES])


def _row(one: StoredMessage, *, masked: bool) -> dict[str, Any]:
    """Return a message by name; one that is masked has no `body`, for nobody knows of it
    here.
    """
    row = {
        "message_id": one.message_id,
        "queue": one.queue,
        "offset": one.offset,
        "stored_at": iso_time(one.stored_at_ms),
        "key": one.key,
        "tag": one.tag,
        "trace_id": one.trace_id,
        "attempt": one.attempt,
        "headers": one.headers,
    }
    return row if masked else {**row, **_body(one.body)}


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode("ascii")}
