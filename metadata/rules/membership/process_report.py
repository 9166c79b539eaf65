"""Report of a consumer process about itself, and the short text that is stored of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import DecodeError, Meta, Struct, json

from metadata.rules.wire import Number

EVERY_S = 10  # how often brokers request it from a member
MAX_CHARS = 500  # of the text: ten numbers of nineteen digits and their names


class SlowHandler(Struct, frozen=True):
    """The handler call of a process that runs for the longest time, and the first message
    of it.
    """

    queue: Number
    offset: Number
    running_ms: Annotated[
        Number, Meta(description="for how long it ran when the process reported it")
    ]


class ProcessStatus(Struct, frozen=True):
    """Report of a member's process about itself."""

    threads: Annotated[Number, Meta(description="threads for handlers")]
    busy: Annotated[Number, Meta(description="threads in which a handler is at work")]
    buffered: Annotated[
        Number, Meta(description="messages in memory that no handler has begun")
    ]
    buffered_bytes: Annotated[Number, Meta(description="bytes of their bodies")]
    handled: Annotated[
        Number, Meta(description="messages handled since the process started")
    ]
    failed: Annotated[Number, Meta(description="attempts that failed since then")]
    slowest: Annotated[
        SlowHandler | None, Meta(description="null while no handler is at work")
    ] = None


def pack(report: ProcessStatus) -> str:
    """Return a report as text.

    >>> pack(ProcessStatus(8, 0, 5, 900, 40, 1))[:40]
    '{"threads":8,"busy":0,"buffered":5,"buff'
    """
    return json.encode(report).decode()


def unpack(text: str) -> ProcessStatus | None:
    """Return the report of a text, None for '' and for a text of another release that
    lacks fields.

    >>> unpack(pack(ProcessStatus(8, 1, 5, 900, 40, 1, SlowHandler(7, 12, 3000)))).slowest
    SlowHandler(queue=7, offset=12, running_ms=3000)
    >>> unpack('{"threads": 8}') is unpack("") is None
    True
    """
    # Fields that this release does not know are ignored, so a member may be newer.
    try:
        return json.decode(text, type=ProcessStatus)
    except DecodeError:
        return None
