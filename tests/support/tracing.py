"""Own frames that stand on the stack when the driver of a database is asked."""

from __future__ import annotations

import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.environment import ROOT

PACKAGES = ("brokerapi", "catmq_site", "portal", "messagestore", "metadata")
ASKING = {"query", "send_query", "execute", "executemany", "executescript"}

Hop = tuple[str, str]  # path of the file, dotted name of the function
Way = tuple[Hop, ...]  # the outermost first


def own(frame: FrameType | None) -> Way:
    """Return the product's frames from the outermost to this one."""
    found: list[Hop] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            part = path.relative_to(ROOT).with_suffix("")
            if part.parts[0] in PACKAGES:
                found.append((str(part), ".".join([*part.parts, frame.f_code.co_qualname])))
        frame = frame.f_back
    return tuple(reversed(found))


def _asks(frame: FrameType, event: str, given: Any) -> bool:
    if event == "c_call":  # SQLite's driver, and the compiled part of the other one
        return given.__name__ in ASKING and (
            isinstance(given.__self__, sqlite3.Connection | sqlite3.Cursor)
            or type(given.__self__).__module__.startswith("MySQLdb")
        )
    return (
        event == "call"
        and frame.f_code.co_name in ASKING
        and "MySQLdb" in Path(frame.f_code.co_filename).parts
    )


@contextmanager
def traced() -> Iterator[list[Way]]:
    """Collects the ways on which this thread comes to a driver meanwhile, each once, in
    order.
    """
    ways: dict[Way, None] = {}

    def look(frame: FrameType, event: str, given: Any) -> None:
        if _asks(frame, event, given):
            ways.setdefault(own(frame))

    found: list[Way] = []
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)
        found.extend(ways)


def ways_of(call: Callable[[], object], *, below: str) -> list[Way]:
    """Return the ways on which a call comes to a driver, from the first frame in `below`
    on.
    """
    with traced() as found:
        call()
    cut = (
        tuple(itertools.dropwhile(lambda hop: not hop[0].startswith(below), way))
        for way in found
    )
    return list(dict.fromkeys(way for way in cut if way))


def returns(way: Way) -> list[str]:
    """Return the files that a way comes back to after it has left them."""
    files = [path for path, _ in itertools.groupby(way, key=lambda hop: hop[0])]
    return sorted({path for path in files if files.count(path) > 1})


def names(way: Way) -> list[str]:
    """Return the dotted names of a way's functions."""
    return [name for _, name in way]
