"""Parts of a consumer that speak to brokers, in threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport, api_path
from catmq_client.reading.state import GroupState

Settle = Callable[[CatmqError, str | None], bool]


class Part:
    """Base of all; they share the state."""

    def __init__(
        self, *, transport: Transport, state: GroupState, settle: Settle = lambda error, consumer_id: False
    ) -> None:
        """`settle(error, consumer_id)` draws the consequences of an error; False: trying again may help."""
        self._transport = transport
        self._state = state
        self._settle = settle
        self._options = state.options

    def _post(self, *parts: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        limit_s = self._options.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        return self._transport.request("POST", api_path(*parts), body=body, timeout_s=limit_s)
