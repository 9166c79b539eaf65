"""Fixtures for kombu's integration classes on `catmq://`; tests/foreign/celery.py runs it
in kombu's tree.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import kombu
import pytest
from t.integration import common  # type: ignore[import-not-found]  # kombu's

import catmq_client.contrib.kombu

catmq_client.contrib.kombu.Transport  # noqa: B018 - the import registers the scheme
URL, VHOST = os.environ["CATMQ_BROKER"], secrets.token_hex(4)
KEY = URL.partition("@")[0]


class DrainsAll(kombu.Connection):
    """A connection of which one drain delivers all there is, as the priority tests want."""

    def drain_events(self, **options: Any) -> Any:
        found = super().drain_events(**options)
        try:
            while True:
                super().drain_events(timeout=1)
        except TimeoutError:
            return found


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(f"{URL}/k{VHOST}")


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("catmq://localhost:12345")


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(
        f"{KEY}@localhost:12345/k{VHOST};{URL}/k{VHOST}", connect_timeout=10
    )


class TestBasic(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    @pytest.fixture
    def connection(self) -> kombu.Connection:
        options = {"priority_steps": [0, 3, 6, 9], "topic_queues": 1}
        return DrainsAll(f"{URL}/p{VHOST}", transport_options=options)


class TestMessage(common.BaseMessage):
    pass


class TestFailover(common.BaseFailover):
    pass


class TestEventLoop(common.BaseEventLoop):
    """Wants the order of two messages, so its topic has one queue."""

    @pytest.fixture
    def connection(self) -> kombu.Connection:
        return kombu.Connection(f"{URL}/l{VHOST}", transport_options={"topic_queues": 1})
