"""Wait for an event, with a limit. Tests wait in no other way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    happened: Callable[[], T | None], *, limit_s: float = 15.0, every_s: float = 0.01
) -> T:
    """Return the result of `happened` once it is true. Raises AssertionError after
    `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while True:
        result = happened()
        if result:
            return result
        assert time.monotonic() < deadline, f"did not happen within {limit_s} s"
        pause.wait(every_s)
