"""A request's body: bytes read under a limit, unpacked under a limit, decoded into a typed
struct.

The stream is read here and nowhere else (`request.body` would read first and count later).
A Content-Length over the limit is refused before a byte is read; a chunked body is counted
as it comes.
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
from metadata.errors import Code, FieldError, Invalid, Malformed, TooLarge, Unavailable
from metadata.limits.concurrency import limiter

T = TypeVar("T")
CHUNK_BYTES = 64 << 10
GZIP_WBITS = 31  # zlib's number for "a gzip header and nothing else"
MAX_GZIP_MEMBERS = 16  # every one costs a copy of what follows it, also when it is empty

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


class Body(Generic[T]):
    """Body that an endpoint reads: the struct of its JSON and, if it differs, of its
    MessagePack.

    `usual` is a struct for most of what comes in MessagePack: tried first, and whatever is
    not like it is read as `msgpack`, which alone says what is wrong. `most_bytes` is the
    limit where it is below that of the settings. `check_packed` refuses MessagePack with
    too many values before they are made; None where
    `most_bytes` is limit enough.
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
        """The request's body, of at most so many bytes and values. Raises Malformed,
        TooLarge, or Invalid naming the field."""
        kind = formats.request_format(request)
        data = read_bytes(request, most or self._most_bytes)
        if not data:
            raise Malformed(f"The request has no body: send {kind.media_type}.")
        if kind.name == formats.JSON.name:
            value_limits.check_json(data, most_values)
        elif self._check_packed is not None:
            self._check_packed(data, most_values)
        if self._usual is not None and kind.name == formats.MSGPACK.name:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                return self._usual(data)
        return _decoded(self._decode[kind.name], data, kind)


ANY: Body[Any] = Body(Any)


def read_query(request: HttpRequest, struct: type[T]) -> T:
    """The query parameters as `struct`. Raises Invalid naming one that is wrong, double or
    unknown.
    """
    parameters = request.GET
    for name in parameters:
        if len(parameters.getlist(name)) > 1:
            raise Invalid.field(name, "is given more than once")
    try:
        return msgspec.convert(parameters.dict(), struct, strict=False)
    except msgspec.ValidationError as error:
        raise field_error(error) from error


def read_bytes(request: HttpRequest, most: int | None = None) -> bytes:
    """The body, unpacked; `most` bytes of it instead of what the settings allow. Raises
    TooLarge or Malformed."""
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        detail = f"Content-Encoding {encoding[:50]!r} is not understood: use gzip or none."
        raise Invalid(detail, code=Code.UNSUPPORTED_MEDIA_TYPE)
    data = _read_wire(request, most or config.request_max_bytes)
    return (
        _unpacked(data, most or config.request_max_unpacked_bytes)
        if encoding == "gzip"
        else data
    )


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_wire(request: HttpRequest, limit: int) -> bytes:
    stream: _Stream = request.META["wsgi.input"]
    length = request.META.get("CONTENT_LENGTH") or ""
    if length:
        return (
            _read_counted(stream, int(length), limit)
            if length.isdigit()
            else _bad_length(length)
        )
    # Only a server that ends the stream where the body ends may be read without a length
    # (gunicorn).
    if "HTTP_TRANSFER_ENCODING" in request.META and request.META.get(
        "wsgi.input_terminated"
    ):
        return _read_chunked(stream, limit)
    return b""


def _bad_length(length: str) -> bytes:
    raise Malformed(f"Content-Length {length[:30]!r} is not a number.")


def _read_counted(stream: _Stream, length: int, limit: int) -> bytes:
    if length > limit:
        raise _request_too_large(f"has {length} bytes", limit)
    pieces, left = [], length
    while left and (piece := _read(stream, min(left, CHUNK_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise Malformed(f"The request ended {left} bytes before its Content-Length.")
    return b"".join(pieces)


def _read_chunked(stream: _Stream, limit: int) -> bytes:
    pieces, size = [], 0
    while piece := _read(stream, CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _request_too_large("goes on", limit)
    return b"".join(pieces)


def _read(stream: _Stream, size: int) -> bytes:
    try:
        with limiter.aside():
            return stream.read(size)
    except TimeoutError as error:
        detail = f"The body did not arrive in time: {error}. Nothing was done."
        raise Unavailable(detail, code=Code.REQUEST_TIMEOUT) from error
    # every HTTP server has its own for broken chunks and lost clients
    except Exception as error:
        raise Malformed(f"The body could not be read to its end: {error}.") from error


def _request_too_large(how: str, limit: int) -> TooLarge:
    return TooLarge(
        f"The request {how}; at most {limit} bytes are allowed: send fewer messages at once."
    )


def _unpacked(data: bytes, limit: int) -> bytes:
    """The gunzipped bytes, never more than one chunk over the limit in memory."""
    pieces: list[bytes] = []
    size = 0
    while data:
        if len(pieces) == MAX_GZIP_MEMBERS:
            raise Malformed(
                f"The gzip body has more than {MAX_GZIP_MEMBERS} members: use one."
            )
        member = zlib.decompressobj(GZIP_WBITS)
        piece, data = _member(member, data, limit - size + 1)
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise TooLarge(
                f"The request unpacks to more than the {limit} bytes that are allowed."
            )
    return b"".join(pieces)


def _member(member: zlib._Decompress, data: bytes, most: int) -> tuple[bytes, bytes]:
    """(unpacked bytes, what follows) of the gzip member that `data` begins with."""
    try:
        piece = member.decompress(data, most)
    except zlib.error as error:
        raise Malformed(f"The body is not gzip: {error}.") from error
    if not member.eof and len(piece) < most:
        raise Malformed("The gzip body ends early.")
    return piece, member.unused_data


def _decoded(decode: Callable[[bytes], T], data: bytes, kind: formats.Format) -> T:
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise field_error(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"The body is not {kind.media_type}: {error}.") from error


def field_error(error: msgspec.ValidationError) -> Invalid:
    """msgspec's words as an Invalid that names the field as the caller wrote it.

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


def _field(path: str, name: str, message: str) -> Invalid:
    field = ".".join(part for part in (path, name) if part) or "(body)"
    return Invalid(f"{field}: {message}", errors=[FieldError(field, message)])
