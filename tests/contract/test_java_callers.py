"""Requests of Java clients by address and client: what is counted, kept and shown, and to
whom.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import F

from brokerapi.java import endpoint
from metadata.brokers import java_callers
from metadata.models import JavaCaller
from tests.support.broker import Broker
from tests.support.forms import browser as browser_of
from tests.support.forms import text
from tests.support.java_client import CONSUMER, Wire
from tests.support.rows import ME, long_ago


@pytest.fixture
def wire(broker: Broker, queue: int, metadata_db: None) -> Iterator[Wire]:
    java_callers._counts.clear()
    made = Wire(broker.url)
    yield made
    made.close()
    java_callers._counts.clear()


def publish(wire: Wire, topic: str = "single", version: str = "5.5.1") -> None:
    """Send a message as a client of this version does, whatever the answer."""
    wire.call(
        CONSUMER + "publish",
        {"topicName": topic, "msgs": [{"body": "x"}], "sdkVersion": version},
    )


def found() -> dict[str, tuple[int, int, int]]:
    return {
        one.sdk: (one.answered, one.refused, one.limited)
        for one in java_callers.list_callers(actor=ME)
    }


def test_requests_are_counted_by_client_and_outcome(
    wire: Wire, request: pytest.FixtureRequest
) -> None:
    publish(wire)  # not let in: refused before it is read
    request.getfixturevalue("java_let_in")
    for topic, version in (
        ("single", "5.5.1"),
        ("nowhere", "5.5.1"),
        ("single", "${project.version}"),
    ):
        publish(wire, topic, version)
    java_callers.count_request(address="127.0.0.1", sdk="", outcome="limited")
    assert java_callers.flush() == 3
    assert found() == {"": (0, 1, 1), "pmq-java/5.5.1": (1, 1, 0), "catmq-java": (1, 0, 0)}

    publish(wire)
    java_callers.flush()
    assert found()["pmq-java/5.5.1"] == (2, 1, 0)


@pytest.mark.usefixtures("java_let_in")
def test_one_that_is_too_fast_is_counted_as_limited(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_buckets", {})
    monkeypatch.setattr(endpoint.rates, "wait_s", lambda *_, **__: 1.0)
    publish(wire)
    java_callers.flush()
    assert found() == {"": (0, 0, 1)}


@pytest.mark.usefixtures("java_let_in")
def test_counts_of_earlier_hours_fade_and_old_rows_go(wire: Wire) -> None:
    publish(wire)
    java_callers.flush()
    JavaCaller.objects.update(hour=F("hour") - 1)
    publish(wire)
    java_callers.flush()
    row = JavaCaller.objects.get()
    assert (row.answered, row.answered_before) == (1, 1)
    JavaCaller.objects.update(hour=F("hour") - 5)
    assert found() == {"pmq-java/5.5.1": (0, 0, 0)}
    JavaCaller.objects.update(last_seen=long_ago(seconds=8 * 86_400))
    java_callers.prune()
    assert found() == {}


def test_so_many_callers_are_kept(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_callers, "MAX_ROWS", 2)
    for number in range(5):
        java_callers.count_request(address=f"10.0.0.{number}", sdk="", outcome="refused")
    java_callers.flush()
    assert JavaCaller.objects.count() == 2


@pytest.mark.usefixtures("java_let_in")
def test_administrators_see_them(wire: Wire, broker: Broker) -> None:
    publish(wire)
    java_callers.flush()
    page = text(browser_of("ada", administrator=True).get("/java-clients"))
    assert "127.0.0.1" in page and "pmq-java/5.5.1" in page
    assert browser_of("bob").get("/java-clients").status_code == 403
