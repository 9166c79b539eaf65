"""Limits on the number of values in a body, checked before the values are created.

A value of a byte or two becomes an object of a hundred bytes or more, and msgspec checks
the length of a list only when the list is complete. So 72 KB of gzip could take gigabytes
of a worker. Bodies of up to SMALL_BYTES are not counted: they fit into a few megabytes,
whatever they contain.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

from metadata.config import config
from metadata.errors import TooLarge

SMALL_BYTES = 64 << 10
# As values they take 25 MB. Bodies of a megabyte seldom have more commas.
FEW_COMMAS = 200_000
FIELDS_OF_A_MESSAGE = 12
# The number of values of the largest send, which is more than any other request has.
MAX_VALUES = max(50_000, config.max_messages * (config.max_headers + FIELDS_OF_A_MESSAGE))


def check_json(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a JSON text has more than `most` values, and at least FEW_COMMAS
    commas.
    """
    # Each value after the first of its list or object comes after a comma.
    if len(data) <= SMALL_BYTES or data.count(b",") < max(most, FEW_COMMAS):
        return
    # Commas in strings do not count. Without escaped quotes every second part between
    # quotes is outside of strings. Pairs of backslashes are removed first: a backslash that
    # remains of a run escapes the quote after it.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most two strings: its key and itself.
    if plain.count(b'"') > 4 * most or b"".join(plain.split(b'"')[::2]).count(b",") >= most:
        raise too_many(most)


def too_many(most: int) -> TooLarge:
    return TooLarge(f"The request has more than {most} values: send fewer at once.")


def check_packed(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a MessagePack body has more than `most` values."""
    if len(data) <= SMALL_BYTES:
        return
    position, count, open_values = 0, 0, 1
    # Walks over the headers of values without creating any: `open_values` are still to
    # come.
    while open_values and position < len(data):
        size, values = _value_size(data[position], data, position + 1)
        position += 1 + size
        open_values += values - 1
        count += 1
        if count + open_values > most:
            raise too_many(most)


def _value_size(kind: int, data: bytes, at: int) -> tuple[int, int]:
    """Return how many bytes of a MessagePack value follow its first byte, and how many
    values it contains.
    """
    if kind <= 0x7F or kind >= 0xE0:
        return 0, 0
    if kind <= 0x8F:
        return 0, 2 * (kind & 0x0F)
    if kind <= 0x9F:
        return 0, kind & 0x0F
    if kind <= 0xBF:
        return kind & 0x1F, 0
    if kind not in _LONG:
        return _FIXED.get(kind, 0), 0
    digits, extra_bytes, values = _LONG[kind]
    length = int.from_bytes(data[at : at + digits])
    return (digits, length * values) if values else (digits + extra_bytes + length, 0)


# First byte of bytes, extensions, texts, arrays and maps → (bytes of the length, bytes that
# the length does not count, values per counted element).
_LONG = {
    0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0),
    0xC7: (1, 1, 0), 0xC8: (2, 1, 0), 0xC9: (4, 1, 0),
    0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0),
    0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2), 0xDF: (4, 0, 2),
}  # fmt: skip
# First byte → bytes of a number or of a short extension.
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip


class _Send(Struct):
    messages: Raw = Raw()


class _Message(Struct):
    body: Raw = Raw()
    body_bytes: Raw = Raw()


_SEND = msgspec.msgpack.Decoder(_Send)
_MESSAGES = msgspec.msgpack.Decoder(list[_Message])
# Bytes of a send besides its bodies up to which its values need not be counted.
OTHER_BYTES = 1 << 20


def check_packed_send(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a MessagePack send has too many messages, or more than `most`
    values.
    """
    # Sends are the most frequent requests, so values are counted only in those that have
    # more bytes besides the bodies than most.
    if len(data) <= SMALL_BYTES:
        return
    # Malformed bodies pass: the decoder reports them at the same position.
    with suppress(msgspec.MsgspecError, RecursionError):
        messages = _SEND.decode(data).messages
        count = _array_length(bytes(memoryview(messages)[:5]))
        if count > config.max_messages:
            raise TooLarge(
                f"messages: {count} in one request; at most {config.max_messages} are allowed."
            )
        # A field that is there twice is made twice and seen once here: the first is among
        # the other bytes.
        must_count = len(data) - len(memoryview(messages)) > SMALL_BYTES
        if not must_count and len(data) > OTHER_BYTES:
            body_bytes = sum(
                len(memoryview(message.body)) + len(memoryview(message.body_bytes))
                for message in _MESSAGES.decode(messages)
            )
            must_count = len(data) - body_bytes > OTHER_BYTES
        if must_count:
            check_packed(data, most)


def _array_length(head: bytes) -> int:
    """Return the length of the MessagePack array that begins so; 0 for a short array and
    for any other value.
    """
    if head[:1] in (b"\xdc", b"\xdd"):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5])
    return 0
