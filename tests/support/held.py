"""A transport that holds requests or answers back, to force the order of events."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from catmq_client.http.transport import Transport

LIMIT_S = 20.0
BodyCondition = Callable[[Mapping[str, Any]], bool]


class Gate:
    """Holds matching requests until `open` is called."""

    def __init__(
        self, pattern: str, matches_body: BodyCondition | None, after: bool
    ) -> None:
        self._pattern = re.compile(pattern)
        self._matches_body = matches_body
        self._opened = threading.Event()
        self._arrived = threading.Event()
        self.after = after
        self.held = 0

    def open(self) -> None:
        """Let everything through, now and later."""
        self._opened.set()

    def spare_others(self) -> None:
        """Keep holding requests that arrived already, and let later requests through."""
        self._matches_body = lambda body: False

    def wait(self) -> None:
        """Wait until a request is held."""
        assert self._arrived.wait(LIMIT_S), (
            f"nothing came that matches {self._pattern.pattern}"
        )

    def pass_through(self, request: str, body: Mapping[str, Any]) -> None:
        """Hold the request if it matches. Called for every request."""
        if self._opened.is_set() or not self._pattern.search(request):
            return
        if self._matches_body is None or self._matches_body(body):
            self.held += 1
            # Counted and reported before the wait, so that the test knows that the request
            # is held.
            self._arrived.set()
            assert self._opened.wait(LIMIT_S), f"{request} was held for too long"


class HeldTransport:
    """Passes requests on to another transport, some of them later."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._gates: list[Gate] = []

    def hold(
        self,
        pattern: str,
        matches_body: BodyCondition | None = None,
        *,
        after: bool = False,
    ) -> Gate:
        """Hold requests that match `METHOD path` and the body condition. `after`: hold
        their answers.
        """
        self._gates.append(Gate(pattern, matches_body, after))
        return self._gates[-1]

    def open_all(self) -> None:
        """Open all gates."""
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
