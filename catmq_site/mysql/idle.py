"""Pools of idle connections, which threads take and give back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from typing import Any

MAX_IDLE = 8  # per kind; further connections are closed when they are given back
TRUST_IDLE_S = 1.0  # a connection that was idle for longer is pinged before use


class IdleConnections:
    """A stack of idle connections per kind (host, user, database, options). Last in, first
    out, so that surplus connections stay idle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[Hashable, list[tuple[Any, float]]] = {}
        # A forked child must neither use nor close a connection of its parent: closing
        # sends COM_QUIT on the shared socket. These references keep them from being
        # collected.
        self._parent_connections: list[object] = []
        os.register_at_fork(after_in_child=self._forget_after_fork)

    def take(self, kind: Hashable) -> Any | None:
        """Return a usable connection, None if a new connection must be opened."""
        while True:
            with self._lock:
                stack = self._stacks.get(kind)
                if not stack:
                    return None
                raw, since = stack.pop()
            if time.monotonic() - since < TRUST_IDLE_S:
                return raw
            try:
                raw.ping()
            except Exception:  # noqa: BLE001, S110  any failure of any driver: not usable
                pass
            else:
                return raw
            raw.close()
            self.drop(kind)  # the server or the network failed: the others are lost, too

    def give(self, kind: Hashable, raw: Any) -> bool:
        """Keep a connection for other threads. Return False if enough are kept: then the
        caller closes it.
        """
        with self._lock:
            stack = self._stacks.setdefault(kind, [])
            if len(stack) < MAX_IDLE:
                stack.append((raw, time.monotonic()))
                return True
        return False

    def drop(self, kind: Hashable) -> None:
        with self._lock:
            stack = self._stacks.pop(kind, [])
        # Outside the lock: close() writes to the network.
        for raw, _ in stack:
            raw.close()

    def _forget_after_fork(self) -> None:
        self._parent_connections.append(self._stacks)
        # The old lock may be held by a thread that does not exist in the child.
        self._lock = threading.Lock()
        self._stacks = {}


idle = IdleConnections()
