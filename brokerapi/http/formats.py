"""The two formats, JSON and MessagePack, and how a request selects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
from django.http import HttpRequest

from metadata.errors import Code, Invalid


@dataclass(frozen=True, slots=True)
class Format:
    """A media type and its encoder.

    `rows`: messages of a pull are encoded as rows of their table, without field names.
    `Accept: application/msgpack;messages=rows` selects this.
    """

    name: str
    media_type: str
    encode: Callable[[Any], bytes]
    rows: bool = False


JSON = Format("json", "application/json", msgspec.json.Encoder().encode)
MSGPACK = Format("msgpack", "application/msgpack", msgspec.msgpack.Encoder().encode)
ROWS = replace(MSGPACK, rows=True)

_REMEDY = "use application/json or application/msgpack"
_BY_MEDIA_TYPE = {
    "application/json": JSON,
    "application/msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
}
_AS_ROWS = "messages=rows"
# `Accept` entries that leave the choice to us.
_ANY = ("", "*/*", "application/*", "application/problem+json")


def request_format(request: HttpRequest) -> Format:
    """Return the format of the request's body, JSON without a Content-Type. Raises Invalid
    (415).
    """
    return _parse_content_type(request.META.get("CONTENT_TYPE", ""))


def answer_format(request: HttpRequest) -> Format:
    """Return the format that `Accept` prefers, else that of the request. Raises Invalid
    (406).
    """
    accepted = _parse_accept(request.META.get("HTTP_ACCEPT", ""))
    if accepted is not None:
        return accepted
    media_type = request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    return _BY_MEDIA_TYPE.get(media_type, JSON)


@lru_cache(maxsize=256)
def _parse_content_type(content_type: str) -> Format:
    if not content_type:
        return JSON
    media_type, _, parameters = content_type.lower().partition(";")
    format_ = _BY_MEDIA_TYPE.get(media_type.strip())
    charset = parameters.partition("charset=")[2].partition(";")[0].strip(' "')
    if format_ is None:
        raise _unsupported(
            f"Content-Type {content_type[:100]!r} is not understood: {_REMEDY}."
        )
    if charset not in ("", "utf-8", "utf8"):
        raise _unsupported(f"charset {charset!r} is not understood: JSON is sent as UTF-8.")
    return format_


@lru_cache(maxsize=256)
def _parse_accept(accept: str) -> Format | None:
    """Return the preferred format, None if any will do."""
    entries = [_parse_accept_entry(entry) for entry in accept.lower().split(",")]
    acceptable = (entry for entry in entries if entry[0] > 0)
    # sorted() is stable: with equal weights the first entry of the header wins.
    for _, media_type, rows in sorted(acceptable, key=lambda entry: -entry[0]):
        if media_type in _BY_MEDIA_TYPE:
            format_ = _BY_MEDIA_TYPE[media_type]
            return ROWS if rows and format_ is MSGPACK else format_
        if media_type in _ANY[:3]:
            return None
    if any(media_type in _ANY for _, media_type, _ in entries):
        return None
    raise Invalid(
        f"Accept {accept[:100]!r} cannot be met: {_REMEDY}.", code=Code.NOT_ACCEPTABLE
    )


def _parse_accept_entry(entry: str) -> tuple[float, str, bool]:
    """Return (weight, media type, whether rows are selected) of an entry of an Accept
    header. An invalid weight counts as 1.
    """
    media_type, _, parameters = entry.partition(";")
    text = parameters.partition("q=")[2].partition(";")[0].strip()
    try:
        weight = float(text) if text else 1.0
    except ValueError:
        weight = 1.0
    return weight, media_type.strip(), _AS_ROWS in parameters.replace(" ", "").split(";")


def _unsupported(detail: str) -> Invalid:
    return Invalid(detail, code=Code.UNSUPPORTED_MEDIA_TYPE)
