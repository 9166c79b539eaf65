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
from portal.kit.pages import Link, to
from portal.kit.tables import harmless, with_words
from portal.templatetags.shapes import iso
from portal.views.messages import finding

MOST = 1_000  # messages of a file
TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
NAMES = (
    "message_id", "queue", "offset", "stored_at", "key", "tag", "trace_id", "attempt",
    "headers", "body",
    "body_base64",
)  # fmt: skip


def links(request: HttpRequest) -> list[Link]:
    """Return the downloads of what a page shows."""
    page = to("messages-download")
    return [
        Link(label, page + with_words(request, format=kind, tail="", columns=""))
        for kind, label in (("jsonl", _("JSON lines")), ("csv", "CSV"))
    ]


def download(request: HttpRequest) -> HttpResponse:
    """The file. Its name ends in `-part` if there are more messages than it holds."""
    kind = request.GET.get("format", "jsonl")
    if kind not in TYPES:
        raise Invalid.field("format", _("must be one of: %s") % ", ".join(TYPES))
    asked = finding.fields(request)
    if not asked["topic"]:
        raise Invalid.field("topic", _("is required"))
    found = finding.collect(asked, most=MOST, actor=actor(request))
    response = HttpResponse(content_type=TYPES[kind])
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
    written.writerow(NAMES)
    for row in rows:
        headers = row["headers"]
        row["headers"] = json.dumps(headers, ensure_ascii=False) if headers else None
        written.writerow([harmless(row.get(name)) for name in NAMES])


def _row(one: StoredMessage, *, masked: bool) -> dict[str, Any]:
    """Return a message by name; one that is masked has no `body`, for nobody knows of it
    here.
    """
    row = {
        "message_id": one.message_id,
        "queue": one.queue,
        "offset": one.offset,
        "stored_at": iso(one.stored_at_ms),
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
