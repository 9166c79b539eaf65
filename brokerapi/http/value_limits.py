"""Limits on the number of values in a request body, checked before the body is decoded.

A value of a byte or two becomes a Python object of a hundred bytes or more, and msgspec
checks the length of a list only when the list is complete. So a body that is 72 KB when
gzipped could take gigabytes of a worker's memory.

Counting costs time, so most bodies pass by a cheap test that bounds their memory anyway: by
their size, in JSON by the number of commas, and in a MessagePack send by the size without
the message bodies. The values of the other bodies are counted.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

from metadata.config import config
from metadata.errors import TooLarge

# A body of this size is not counted: whatever it contains fits into a few megabytes.
SMALL_BYTES = 64 << 10
# A JSON text with fewer commas is not counted: 200,000 values take 25 MB of memory. Nearly
# all bodies of up to a megabyte have fewer.
FEW_COMMAS = 200_000
# A MessagePack send is not counted if it has at most this many bytes outside of the message
# bodies. A body is a single value, however long it is.
OTHER_BYTES = 1 << 20
FIELDS_OF_A_MESSAGE = 12
# The number of values in the largest send. No other request has as many.
MAX_VALUES = max(50_000, config.max_messages * (config.max_headers + FIELDS_OF_A_MESSAGE))


def check_json(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a JSON text has more than `most` values. A text with fewer than
    FEW_COMMAS commas always passes.
    """
    # A list or object of n values has n - 1 commas, so the commas bound the number of values.
    # Commas inside of strings are counted here, too, so this test may only let a text pass.
    if len(data) <= SMALL_BYTES or data.count(b",") < max(most, FEW_COMMAS):
        return
    # Now count only the commas outside of strings. Without escaped quotes, splitting at the
    # quotes gives text outside and inside of strings in turn. Escaped backslashes are removed
    # before escaped quotes, because the quote in `\\"` is not escaped.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most four quotes: two of its key, and two of its own if it is a string. This
    # test comes first, because the split would make an object for every string.
    if plain.count(b'"') > 4 * most:
        raise too_many(most)
    outside_of_strings = b"".join(plain.split(b'"')[::2])
    if outside_of_strings.count(b",") >= most:
        raise too_many(most)


def too_many(most: int) -> TooLarge:
    return TooLarge(f"The request has more than {most} values: send fewer at once.")


def check_packed(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a MessagePack body has more than `most` values."""
    if len(data) <= SMALL_BYTES:
        return
    # Jump from the first byte of each value to that of the next, without creating values. The
    # length of a list or map announces values that follow it: they count at once, so a huge
    # length is refused before its values are walked.
    position, passed_values, announced_values = 0, 0, 1
    while announced_values and position < len(data):
        size, contained_values = _value_size(data[position], data, position + 1)
        position += 1 + size
        passed_values += 1
        announced_values += contained_values - 1
        if passed_values + announced_values > most:
            raise too_many(most)


# First byte of binaries, extensions, strings, arrays and maps → (bytes of the length field,
# further bytes that the length does not include, values per element: 2 in a map).
_LONG = {
    0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0),
    0xC7: (1, 1, 0), 0xC8: (2, 1, 0), 0xC9: (4, 1, 0),
    0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0),
    0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2), 0xDF: (4, 0, 2),
}  # fmt: skip
# First byte of a number or of a short extension → bytes after it.
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip


def _value_size(kind: int, data: bytes, at: int) -> tuple[int, int]:
    """Return how many bytes of a MessagePack value follow its first byte, `kind`, up to the
    values it contains, and how many values it contains. `at` is the index after `kind`.
    """
    # Numbers, nil and booleans of a single byte, then short maps, lists and strings.
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


# Decoders that leave the values of interest encoded (Raw), to measure their length.
class _Send(Struct):
    messages: Raw = Raw()


class _Message(Struct):
    body: Raw = Raw()
    body_bytes: Raw = Raw()


_SEND = msgspec.msgpack.Decoder(_Send)
_MESSAGES = msgspec.msgpack.Decoder(list[_Message])


def check_packed_send(data: bytes, most: int = MAX_VALUES) -> None:
    """Raise TooLarge if a MessagePack send has more than `max_messages` messages, or more
    than `most` values.
    """
    # Sends are the most frequent requests. check_packed() would be too slow for each of them,
    # so it runs only if much of the send is not message bodies.
    if len(data) <= SMALL_BYTES:
        return
    # A malformed send passes: the decoder that follows fails at the same byte.
    with suppress(msgspec.MsgspecError, RecursionError):
        messages = _SEND.decode(data).messages
        count = _array_length(bytes(memoryview(messages)[:5]))
        if count > config.max_messages:
            raise TooLarge(
                f"messages: {count} in one request; at most {config.max_messages} are allowed."
            )
        # Usually nearly all of a send is its `messages`. A client may repeat the field: msgspec
        # decodes both lists, but returns the last. The first list then counts as other bytes.
        bytes_outside_messages = len(data) - len(memoryview(messages))
        must_count = bytes_outside_messages > SMALL_BYTES
        if not must_count and len(data) > OTHER_BYTES:
            body_bytes = sum(
                len(memoryview(message.body)) + len(memoryview(message.body_bytes))
                for message in _MESSAGES.decode(messages)
            )
            must_count = len(data) - body_bytes > OTHER_BYTES
        if must_count:
            check_packed(data, most)


def _array_length(head: bytes) -> int:
    """Return the length of the MessagePack array that begins with `head`. Return 0 for an
    array of up to 15 values, whose length is in its first byte, and for any other value.
    """
    if head[:1] in (b"\xdc", b"\xdd"):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5])
    return 0
