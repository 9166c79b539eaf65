"""Fixtures of the contract tests: a broker that listens, on a node of the engine under
test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerapi.java import endpoint
from metadata.rules.membership import addresses
from tests.support import broker as brokers


@pytest.fixture
def bare_broker(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[brokers.Broker]:
    """A broker without nodes; it rebalances by itself, because no job runner is there to
    wait for.
    """
    monkeypatch.setattr("catmq_site.background.sweeps.PATIENCE_S", 0.0)
    with brokers.running() as broker:
        yield broker


@pytest.fixture
def broker(node: str, bare_broker: brokers.Broker) -> brokers.Broker:
    """A broker with one node."""
    return bare_broker


@pytest.fixture
def topic(broker: brokers.Broker) -> str:
    """The name of a topic with two queues."""
    broker.ok("POST", "/topics", {"name": "orders", "queues": 2})
    return "orders"


@pytest.fixture
def queue(broker: brokers.Broker) -> int:
    """The id of the only queue of topic `single`."""
    made = broker.ok("POST", "/topics", {"name": "single", "queues": 1})
    return int(made["queues"][0]["queue"])


@pytest.fixture
def java_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java clients of this machine are let in."""
    monkeypatch.setattr(endpoint, "_networks", addresses.parse_networks(["127.0.0.0/8"]))
