"""The body of a request: bytes read under a limit, unpacked under a limit, decoded into a
typed struct.

The stream is read here and nowhere else (`request.body` would read first and count later).
A Content-Length over the limit is refused before a byte is read; a chunked body is counted
as it arrives.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from django.http import HttpRequest

from brokerapi.http import formats, value_limits
from metadata.config import config
from metadata.errors import (
    Code,
    FieldError,
    Invalid,
    Malformed,
    NotBuilt,
    TooLarge,
    Unavailable,
)
from metadata.limits.concurrency import limiter

T = TypeVar("T")
CHUNK_BYTES = 64 << 10
GZIP_WBITS = 31  # zlib's number for "a gzip header and nothing else"
MAX_GZIP_MEMBERS = 16  # each, even an empty member, costs a copy of the bytes after it

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


class Body(Generic[T]):
    """The body of an endpoint: the struct of its JSON and, if it differs, of its
    MessagePack.

    `usual` is a struct for most MessagePack bodies. It is tried first; a body that does not
    match is decoded as `msgpack`, whose error is reported. `most_bytes` is a limit below
    that of the settings. `check_packed` refuses MessagePack with too many values before
    they are created; None where `most_bytes` is limit enough.
    """

    def __init__(
        self,
        json: type[T],
        msgpack: type[T] | None = None,
        usual: type[T] | None = None,
        *,
        most_bytes: int | None = None,
        check_packed: Callable[[bytes, int], None] | None = value_limits.check_packed,
    ) -> None:
        self.json = json
        self._most_bytes, self._check_packed = most_bytes, check_packed
        self._usual = None if usual is None else msgspec.msgpack.Decoder(usual).decode
        self._decode: dict[str, Callable[[bytes], T]] = {
            formats.JSON.name: msgspec.json.Decoder(json).decode,
            formats.MSGPACK.name: msgspec.msgpack.Decoder(msgpack or json).decode,
        }

    def read(
        self,
        request: HttpRequest,
        most: int | None = None,
        most_values: int = value_limits.MAX_VALUES,
    ) -> T:
        """Return the body, of at most `most` bytes and `most_values` values. Raises
        Malformed, TooLarge, or Invalid naming the field.
        """
        kind = formats.request_format(request)
        body = read_bytes(request, most or self._most_bytes)
        if not body:
            raise Malformed(f"The request has no body: send {kind.media_type}.")
        if kind.name == formats.JSON.name:
            value_limits.check_json(body, most_values)
        elif self._check_packed is not None:
            self._check_packed(body, most_values)
        # A body that is not like `usual` is decoded again, for an error that names the
        # field.
        if self._usual is not None and kind.name == formats.MSGPACK.name:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                return self._usual(body)
        return _decode(self._decode[kind.name], body, kind)


ANY: Body[Any] = Body(Any)


def read_query(request: HttpRequest, struct: type[T]) -> T:
    """Return the query parameters as `struct`. Raises Invalid naming a parameter that is
    wrong, double or unknown.
    """
    parameters = request.GET
    # dict() would silently take the last of several values.
    for name in parameters:
        if len(parameters.getlist(name)) > 1:
            raise Invalid.field(name, "is given more than once")
    try:
        return msgspec.convert(parameters.dict(), struct, strict=False)
    except msgspec.ValidationError as error:
        raise field_error(error) from error


def read_bytes(request: HttpRequest, most: int | None = None) -> bytes:
    """Return the body, unpacked. `most` replaces the limit of the settings. Raises TooLarge
    or Malformed.
    """
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        detail = f"Content-Encoding {encoding[:50]!r} is not understood: use gzip or none."
        raise Invalid(detail, code=Code.UNSUPPORTED_MEDIA_TYPE)
    stream: _Stream = request.META["wsgi.input"]
    length = request.META.get("CONTENT_LENGTH") or ""
    limit, body = most or config.request_max_bytes, b""
    if length:
        if not length.isdigit():
            raise Malformed(f"Content-Length {length[:30]!r} is not a number.")
        body = _read_counted(stream, int(length), limit)
    elif "HTTP_TRANSFER_ENCODING" in request.META and request.META.get(
        "wsgi.input_terminated"
    ):
        coding = request.META["HTTP_TRANSFER_ENCODING"].lower()
        # gunicorn accepts "gzip, chunked", and undoes only the chunks.
        if coding != "chunked":
            detail = f"Transfer-Encoding {coding[:50]!r} is not understood: use chunked."
            raise NotBuilt(detail)
        # Only a server that ends the stream where the body ends (gunicorn) may be read
        # without a length.
        body = _read_chunked(stream, limit)
    if encoding == "gzip":
        return _gunzip(body, most or config.request_max_unpacked_bytes)
    return body


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_counted(stream: _Stream, length: int, limit: int) -> bytes:
    if length > limit:
        raise _request_too_large(f"has {length} bytes", limit)
    pieces, remaining = [], length
    while remaining and (piece := _read(stream, min(remaining, CHUNK_BYTES))):
        pieces.append(piece)
        remaining -= len(piece)
    if remaining:
        raise Malformed(f"The request ended {remaining} bytes before its Content-Length.")
    return b"".join(pieces)


def _read_chunked(stream: _Stream, limit: int) -> bytes:
    pieces, size = [], 0
    while piece := _read(stream, CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        # Counted while reading: a chunked body does not state its length.
        if size > limit:
            raise _request_too_large("goes on", limit)
    return b"".join(pieces)


def _read(stream: _Stream, size: int) -> bytes:
    try:
        # A client that sends slowly must not hold a working thread.
        with limiter.aside():
            return stream.read(size)
    except TimeoutError as error:
        detail = f"The body did not arrive in time: {error}. Nothing was done."
        raise Unavailable(detail, code=Code.REQUEST_TIMEOUT) from error
    # Every HTTP server raises its own exceptions for broken chunks and lost clients.
    except Exception as error:
        raise Malformed(f"The body could not be read to its end: {error}.") from error


def _request_too_large(size: str, limit: int) -> TooLarge:
    return TooLarge(
        f"The request {size}; at most {limit} bytes are allowed: send fewer messages at once."
    )


def _gunzip(body: bytes, limit: int) -> bytes:
    """Return the unpacked bytes, with at most a chunk over the limit in memory."""
    pieces: list[bytes] = []
    size = 0
    while body:
        if len(pieces) == MAX_GZIP_MEMBERS:
            raise Malformed(
                f"The gzip body has more than {MAX_GZIP_MEMBERS} members: use one."
            )
        # A gzip body may consist of several members in a row.
        member = zlib.decompressobj(GZIP_WBITS)
        max_piece = limit - size + 1
        try:
            piece = member.decompress(body, max_piece)
        except zlib.error as error:
            raise Malformed(f"The body is not gzip: {error}.") from error
        if not member.eof and len(piece) < max_piece:
            raise Malformed("The gzip body ends early.")
        body = member.unused_data  # the next member, if any
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise TooLarge(
                f"The request unpacks to more than the {limit} bytes that are allowed."
            )
    return b"".join(pieces)


def _decode(decode: Callable[[bytes], T], body: bytes, kind: formats.Format) -> T:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise field_error(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"The body is not {kind.media_type}: {error}.") from error


def field_error(error: msgspec.ValidationError) -> Invalid:
    """Return msgspec's error as Invalid, with the field's path as the client wrote it.

    >>> error = msgspec.ValidationError("Object contains unknown field `x` - at `$.messages[2]`")
    >>> field_error(error).errors
    (FieldError(field='messages[2].x', message='is not a field of this request'),)
    """
    text = str(error)
    at = _AT.search(text)
    path, text = (at[1], text[: at.start()]) if at else ("", text)
    if unknown := _UNKNOWN.match(text):
        return _field(path, unknown[1][:100], "is not a field of this request")
    if missing := _MISSING.match(text):
        return _field(path, missing[1], "is missing")
    return _field(path, "", text[:1].lower() + text[1:].replace("`", ""))


def _field(parent: str, name: str, message: str) -> Invalid:
    field = ".".join(part for part in (parent, name) if part) or "(body)"
    return Invalid(f"{field}: {message}", errors=[FieldError(field, message)])
