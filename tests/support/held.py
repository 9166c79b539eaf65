"""A transport whose requests a test can hold, to force the order in which things happen."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from catmq_client.http.transport import Transport

LIMIT_S = 20.0
Which = Callable[[Mapping[str, Any]], bool]


class Gate:
    """Holds matching requests, from when it was made until `open`."""

    def __init__(self, pattern: str, which: Which | None, after: bool) -> None:
        self._pattern = re.compile(pattern)
        self._which = which
        self._opened = threading.Event()
        self._arrived = threading.Event()
        self.after = after
        self.held = 0

    def open(self) -> None:
        """Lets everything through."""
        self._opened.set()

    def spare_others(self) -> None:
        """Holds what stands there already, and nothing that comes later."""
        self._which = lambda body: False

    def wait(self) -> None:
        """Returns when a request stands at the gate."""
        assert self._arrived.wait(LIMIT_S), (
            f"nothing came that matches {self._pattern.pattern}"
        )

    def pass_through(self, request: str, body: Mapping[str, Any]) -> None:
        """Called for every request; holds those that match."""
        if self._opened.is_set() or not self._pattern.search(request):
            return
        if self._which is None or self._which(body):
            self.held += 1
            self._arrived.set()
            assert self._opened.wait(LIMIT_S), f"{request} was held for too long"


class HeldTransport:
    """Passes requests on to another transport, some of them later than they came."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._gates: list[Gate] = []

    def hold(
        self, pattern: str, which: Which | None = None, *, after: bool = False
    ) -> Gate:
        """Holds requests that match `METHOD path` and have such a body; after=True: their
        answers.
        """
        self._gates.append(Gate(pattern, which, after))
        return self._gates[-1]

    def open_all(self) -> None:
        """Opens every gate."""
        for gate in self._gates:
            gate.open()

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """See Transport."""
        body = more.get("body") or {}
        for gate in [gate for gate in self._gates if not gate.after]:
            gate.pass_through(f"{method} {path}", body)
        answer = self._transport.request(method, path, **more)
        for gate in [gate for gate in self._gates if gate.after]:
            gate.pass_through(f"{method} {path}", body)
        return answer
