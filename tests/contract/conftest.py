"""Fixtures of the contract tests: a broker that listens, on a node of the engine under
test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import requests

from brokerapi.java import endpoint
from metadata.rules.membership import addresses
from tests.support import broker as brokers
from tests.support.hot_calls import KINDS, HotCalls
from tests.support.waiting import until


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


@pytest.fixture
def calls(
    broker: brokers.Broker,
    queue: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[HotCalls]:
    """Hot calls of a broker, which is healthy after the test and has logged no error."""
    made = HotCalls(broker, queue)
    yield made
    made.check_stored()
    for kind in KINDS:
        call = made.make(kind)
        made.exchange([call], [call.data])
    assert requests.get(f"{broker.url}/readyz", timeout=10).status_code == 200
    worker = broker.worker
    assert worker is not None
    until(lambda: not worker.connections)
    assert not len(worker.slow), "a thread waits for a client"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []
    assert "Traceback" not in capfd.readouterr().err
