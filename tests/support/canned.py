"""A transport with prepared answers, for commands whose endpoints FakeBroker does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from catmq_client.errors import CatmqError


class Request(NamedTuple):
    """A request that a command sent."""

    line: str  # "METHOD path"
    body: dict[str, Any] | None
    params: dict[str, Any] | None


class Canned:
    """Answers by "METHOD path". A list is answered element by element; an error is
    raised.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.requests: list[Request] = []

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
    ) -> dict[str, Any]:
        """See Transport."""
        line = f"{method} {path.removeprefix('/api/v1/')}"
        self.requests.append(
            Request(line, dict(body) if body else None, dict(params) if params else None)
        )
        answer = self.answers[line]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, CatmqError):
            raise answer
        return dict(answer)
