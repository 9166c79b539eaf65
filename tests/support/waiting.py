"""Waiting for an event, with a limit: the only way tests wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    happened: Callable[[], T | None], *, limit_s: float = 15.0, every_s: float = 0.01
) -> T:
    """What `happened` returns once that is true. Raises AssertionError after `limit_s`
    seconds.
    """
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while True:
        result = happened()
        if result:
            return result
        assert time.monotonic() < deadline, f"did not happen within {limit_s} s"
        pause.wait(every_s)
