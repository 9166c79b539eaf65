"""The way of a request before its view: turns, and who is refused while many wait for
theirs.
"""

from __future__ import annotations

import json

import pytest
from django.test import RequestFactory

from brokerapi.http import handler
from brokerapi.http.handler import ApiHandler
from metadata.limits.bulkhead import AGAIN_S


@pytest.fixture
def api() -> ApiHandler:
    return ApiHandler()


def test_who_joins_is_refused_with_a_turn_while_many_wait(
    api: ApiHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler.limiter, "waiting", lambda: handler.MOST_WAITING + 1)

    response = api.get_response(RequestFactory().post("/api/v1/groups/billing/consumers"))

    assert response.status_code == 503
    assert response["Content-Length"] == str(len(response.content))  # type: ignore[attr-defined]
    problem = json.loads(response.content)  # type: ignore[attr-defined]
    assert problem["retriable"] is True
    assert problem["retry_after_ms"] >= AGAIN_S[0] * 1000 - 1


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/consumers/x/heartbeat",
        "/api/v1/consumers/x/pull",
        "/api/v1/topics/orders/messages",
    ],
)
def test_others_are_not(
    api: ApiHandler, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(handler.limiter, "waiting", lambda: handler.MOST_WAITING + 1)

    response = api.get_response(RequestFactory().post(path, headers={"host": "127.0.0.1"}))

    assert response.status_code == 401  # without a key: it came as far as its view
