"""The product's frames on the stack when a database driver is called."""

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
DRIVER_CALLS = {"query", "send_query", "execute", "executemany", "executescript"}

Hop = tuple[str, str]  # path of the file, dotted name of the function
Way = tuple[Hop, ...]  # the outermost first


def product_frames(frame: FrameType | None) -> Way:
    """Return the product's frames from the outermost to this frame."""
    hops: list[Hop] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            module = path.relative_to(ROOT).with_suffix("")
            if module.parts[0] in PACKAGES:
                hops.append(
                    (str(module), ".".join([*module.parts, frame.f_code.co_qualname]))
                )
        frame = frame.f_back
    return tuple(reversed(hops))


def _calls_driver(frame: FrameType, event: str, function: Any) -> bool:
    if event == "c_call":  # SQLite's driver, and the compiled part of mysqlclient
        return function.__name__ in DRIVER_CALLS and (
            isinstance(function.__self__, sqlite3.Connection | sqlite3.Cursor)
            or type(function.__self__).__module__.startswith("MySQLdb")
        )
    return (
        event == "call"
        and frame.f_code.co_name in DRIVER_CALLS
        and "MySQLdb" in Path(frame.f_code.co_filename).parts
    )


@contextmanager
def traced() -> Iterator[list[Way]]:
    """Collect the ways by which this thread reaches a driver during the block, each once,
    in order.
    """
    ways: dict[Way, None] = {}

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if _calls_driver(frame, event, argument):
            ways.setdefault(product_frames(frame))

    collected: list[Way] = []
    earlier_profiler = sys.getprofile()
    sys.setprofile(look)
    try:
        yield collected
    finally:
        sys.setprofile(earlier_profiler)
        collected.extend(ways)


def ways_of(call: Callable[[], object], *, below: str) -> list[Way]:
    """Return the ways by which a call reaches a driver, from the first frame in `below` on."""
    with traced() as ways:
        call()
    inner_ways = (
        tuple(itertools.dropwhile(lambda hop: not hop[0].startswith(below), way))
        for way in ways
    )
    return list(dict.fromkeys(way for way in inner_ways if way))


def returns(way: Way) -> list[str]:
    """Return the files to which a way returns after it has left them."""
    files = [path for path, _ in itertools.groupby(way, key=lambda hop: hop[0])]
    return sorted({path for path in files if files.count(path) > 1})


def names(way: Way) -> list[str]:
    """Return the dotted names of a way's functions."""
    return [name for _, name in way]
