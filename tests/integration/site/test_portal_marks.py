"""Charts mark rebalances, resets and alarms, in the step in which they happened."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Target
from metadata.db.clock import database_now
from metadata.models import Alarm, OffsetMove, Rebalance
from metadata.monitoring import alarms
from tests.support import failing
from tests.support.failing import ME
from tests.support.forms import browser, text


@pytest.fixture
def ada(node: str, failure_node: str) -> Client:
    """An administrator's browser; group `billing` reads topic `orders`."""
    failing.billing()
    return browser("ada", administrator=True)


def reset() -> None:
    failing.send(b"a", b"b")
    offset_reset.reset(
        group="billing", topic="orders", target=Target(to="latest"), actor=ME
    )


def kinds(page: str) -> list[str]:
    """The names of kinds of events below the charts of a page."""
    return re.findall(r'<span><i class="\w+ \w*"></i>([^<]+)</span>', page)


def test_a_group_has_marks_of_its_rebalances_resets_and_alarms(ada: Client) -> None:
    failing.member()
    reset()
    alarms.reconcile(
        kind="lag", active={"billing/orders": "much", "billing2/orders": "more"}
    )
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    alarms.raise_alarm(kind="node_low", name="billing", detail="a node of that name")
    page = text(ada.get("/groups/billing"))
    assert "joined</span>" in page and "Rebalance: " in page
    assert f"Reset by {ME.name}: orders</span>" in page
    assert "Alarm: far behind, billing/orders</span>" in page
    assert "Resolved: far behind, billing/orders</span>" in page
    assert "billing2" not in page and "node nearly full" not in page
    named = ["Alarm raised", "Alarm resolved", "Offsets reset", "Rebalance"]
    assert kinds(page) == [*named, *named], "both charts name their lines"


def test_a_topic_and_the_overview_have_marks_of_resets_and_alarms_only(ada: Client) -> None:
    failing.member()
    reset()
    alarms.reconcile(kind="not_cleaned", active={"orders/0": "no", "payments/0": "no"})
    page = text(ada.get("/topics/orders"))
    assert "Alarm: not cleaned, orders/0</span>" in page and "payments" not in page
    assert f"Reset by {ME.name}: orders</span>" in page and "Rebalance: " not in page
    assert set(kinds(page)) == {"Alarm raised", "Offsets reset"}
    first = text(ada.get("/"))
    assert "Alarm: not cleaned, payments/0</span>" in first and "Rebalance: " not in first


def test_what_was_before_the_span_is_not_marked(ada: Client) -> None:
    failing.member()
    alarms.reconcile(kind="lag", active={"billing/orders": "much"})
    reset()
    earlier = database_now() - timedelta(hours=1, minutes=2)
    Alarm.objects.update(since_at=earlier)
    Rebalance.objects.update(at=earlier)
    OffsetMove.objects.update(at=earlier)
    assert 'class="events"' not in text(ada.get("/groups/billing?span=1h"))
    assert text(ada.get("/groups/billing?span=6h")).count("data-at") >= 6  # in both charts
