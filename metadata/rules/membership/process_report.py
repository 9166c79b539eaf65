"""Report of a consumer process about itself, and the short text that is stored of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

EVERY_S = 10  # how often brokers request it from a member
MAX_CHARS = 500  # of the text: ten numbers of nineteen digits and their names


@dataclass(frozen=True, slots=True)
class SlowHandler:
    """The handler call that has run for the longest time, with its first message."""

    queue: int
    offset: int
    running_ms: int


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Handler threads, and how many are busy; messages in memory; counts since the start.

    `failed` counts failed attempts. `slowest` is None while no handler runs.
    """

    threads: int
    busy: int
    buffered: int
    buffered_bytes: int
    handled: int
    failed: int
    slowest: SlowHandler | None = None


def pack(report: ProcessReport) -> str:
    """Return a report as text.

    >>> pack(ProcessReport(8, 0, 5, 900, 40, 1))[:40]
    '{"threads":8,"busy":0,"buffered":5,"buff'
    """
    return json.dumps(asdict(report), separators=(",", ":"))


def unpack(text: str) -> ProcessReport | None:
    """Return the report of a text, None for '' and for a text of another release that
    lacks fields.

    >>> unpack(pack(ProcessReport(8, 1, 5, 900, 40, 1, SlowHandler(7, 12, 3000)))).slowest
    SlowHandler(queue=7, offset=12, running_ms=3000)
    >>> unpack('{"threads": 8}') is unpack("") is None
    True
    """
    if not text:
        return None
    # Fields that this release does not know are ignored, so a member may be newer.
    values = json.loads(text)
    try:
        slowest = values["slowest"]
        return ProcessReport(
            **{name: values[name] for name in ProcessReport.__slots__ if name != "slowest"},
            slowest=slowest
            and SlowHandler(**{name: slowest[name] for name in SlowHandler.__slots__}),
        )
    except KeyError:
        return None
