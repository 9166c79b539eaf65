"""Connections nobody uses at the moment, to be taken by the next thread that needs one like
it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from typing import Any

MAX_IDLE = 8  # per kind of connection; one given back above it is closed
TRUSTED_S = 1.0  # after so long a rest a connection is tried before use


class IdleConnections:
    """A stack of raw connections per kind (host, user, database, options); last in, first
    out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[Hashable, list[tuple[Any, float]]] = {}
        # A connection of the parent process must neither be used nor closed in a forked
        # child: closing says
        # goodbye on the shared socket. The references are kept so that nothing is ever
        # collected.
        self._of_parent: list[object] = []
        os.register_at_fork(after_in_child=self._forked)

    def take(self, kind: Hashable) -> Any | None:
        """A usable connection, None if one has to be made."""
        while True:
            with self._lock:
                stack = self._stacks.get(kind)
                if not stack:
                    return None
                raw, since = stack.pop()
            if time.monotonic() - since < TRUSTED_S or _answers(raw):
                return raw
            raw.close()
            self.drop(kind)  # one is lost: the others died with it

    def give(self, kind: Hashable, raw: Any) -> bool:
        """Keep `raw` for others; False if enough are kept, then the caller closes it."""
        with self._lock:
            stack = self._stacks.setdefault(kind, [])
            if len(stack) < MAX_IDLE:
                stack.append((raw, time.monotonic()))
                return True
        return False

    def drop(self, kind: Hashable) -> None:
        with self._lock:
            stack = self._stacks.pop(kind, [])
        for raw, _ in stack:
            raw.close()

    def _forked(self) -> None:
        self._of_parent.append(self._stacks)
        self._lock = threading.Lock()
        self._stacks = {}


def _answers(raw: Any) -> bool:
    try:
        raw.ping()
    except Exception:  # noqa: BLE001  any failure of any driver means the same: not usable
        return False
    return True


idle = IdleConnections()
