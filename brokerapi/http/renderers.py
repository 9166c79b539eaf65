"""Encode answers in the selected format, and gzip them if the client accepts it."""

from __future__ import annotations

import gzip
from typing import Any

from django.http import HttpRequest, HttpResponse

from brokerapi.http.formats import Format

GZIP_FROM_BYTES = 1024  # below it, packing costs more than it saves
GZIP_LEVEL = 1  # a fifth of the time of level 6 for answers a tenth larger


def render(
    request: HttpRequest, value: Any, kind: Format, status: int = 200
) -> HttpResponse:
    """Return the answer `value` (structs, dataclasses, dicts, lists) in the format `kind`."""
    data = kind.encode(value)
    gzipped = len(data) >= GZIP_FROM_BYTES and takes_gzip(request)
    response = HttpResponse(
        gzip.compress(data, GZIP_LEVEL) if gzipped else data, kind.media_type, status
    )
    if gzipped:
        response["Content-Encoding"] = "gzip"
        response["Vary"] = "Accept-Encoding"
    return response


def takes_gzip(request: HttpRequest) -> bool:
    # Weights are compared as text: clients write q=0, and parsing costs every answer.
    accepted = request.META.get("HTTP_ACCEPT_ENCODING", "")
    for entry in accepted.split(",") if "gzip" in accepted else ():
        name, _, weight = entry.partition(";")
        if name.strip() == "gzip":
            return weight.strip() not in ("q=0", "q=0.0")
    return False
