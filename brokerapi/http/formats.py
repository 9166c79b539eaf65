"""The two formats of requests and answers, and which one a request speaks or wants."""

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
    """A media type and how values are written in it.

    `rows`: the messages of a pull come as the rows of their table, without a name for each
    value: that is what `Accept: application/msgpack;messages=rows` asks for.
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
    """The format of the request's body; no Content-Type counts as JSON. Raises Invalid
    (415).
    """
    return _of_content_type(request.META.get("CONTENT_TYPE", ""))


def answer_format(request: HttpRequest) -> Format:
    """The format to answer in: what `Accept` names first, else the request's own. Raises
    Invalid (406).
    """
    wanted = _of_accept(request.META.get("HTTP_ACCEPT", ""))
    if wanted is not None:
        return wanted
    media_type = request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    return _BY_MEDIA_TYPE.get(media_type, JSON)


@lru_cache(maxsize=256)
def _of_content_type(content_type: str) -> Format:
    if not content_type:
        return JSON
    media_type, _, parameters = content_type.lower().partition(";")
    known = _BY_MEDIA_TYPE.get(media_type.strip())
    charset = parameters.partition("charset=")[2].partition(";")[0].strip(' "')
    if known is None:
        raise _unsupported(
            f"Content-Type {content_type[:100]!r} is not understood: {_REMEDY}."
        )
    if charset not in ("", "utf-8", "utf8"):
        raise _unsupported(f"charset {charset!r} is not understood: JSON is sent as UTF-8.")
    return known


@lru_cache(maxsize=256)
def _of_accept(accept: str) -> Format | None:
    """The best named format, None if any will do."""
    entries = [_weighed(entry) for entry in accept.lower().split(",")]
    wanted = (entry for entry in entries if entry[0] > 0)
    for _, media_type, rows in sorted(wanted, key=lambda entry: -entry[0]):
        if media_type in _BY_MEDIA_TYPE:
            known = _BY_MEDIA_TYPE[media_type]
            return ROWS if rows and known is MSGPACK else known
        if media_type in _ANY[:3]:
            return None
    if any(media_type in _ANY for _, media_type, _ in entries):
        return None
    raise Invalid(
        f"Accept {accept[:100]!r} cannot be met: {_REMEDY}.", code=Code.NOT_ACCEPTABLE
    )


def _weighed(entry: str) -> tuple[float, str, bool]:
    """(weight, media type, whether rows are wanted) of one entry of an Accept header; a
    weight that is no number counts as 1."""
    media_type, _, parameters = entry.partition(";")
    text = parameters.partition("q=")[2].partition(";")[0].strip()
    try:
        weight = float(text) if text else 1.0
    except ValueError:
        weight = 1.0
    return weight, media_type.strip(), _AS_ROWS in parameters.replace(" ", "").split(";")


def _unsupported(detail: str) -> Invalid:
    return Invalid(detail, code=Code.UNSUPPORTED_MEDIA_TYPE)
