"""The page of a share group: who has which messages, why nothing comes, and a lease that is
ended by hand.
"""

from __future__ import annotations

import pytest
from django.test import Client

from metadata.groups import groups
from metadata.models import AuditLog
from tests.support.forms import browser, confirm, filled, text
from tests.support.leasing import ME, lease, made, member, report, runs, send

pytestmark = pytest.mark.one_engine

PAGE = "/groups/mails"


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`."""
    return made()[0]


@pytest.fixture
def ada(queue: int) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def test_the_page_shows_who_has_which_messages(ada: Client, queue: int) -> None:
    worker = member("worker-1", run_messages=3)
    send(*"abcde")
    (first, second) = lease(worker)
    assert report(worker, first, finished=[(0, 1)]) == "ok"
    page = text(ada.get(PAGE))
    for words in (
        "Leased messages",
        "0 … 2",
        "3 … 4",
        "worker-1",
        "In flight",
        "Redelivered",
        "release",
    ):
        assert words in page, words
    assert "nothing is left to lease" not in page
    assert "Rebalance" not in page.replace("Rebalances", ""), "nobody owns a queue"
    assert second.run.first == 3


def test_the_page_says_why_nothing_comes(ada: Client, queue: int) -> None:
    member()
    assert "All messages are handled: nothing is left to lease." in text(ada.get(PAGE))
    send("a")
    assert "nothing is left to lease" not in text(ada.get(PAGE))
    groups.update(name="mails", settings={"stopped": True}, actor=ME)
    assert "The group is paused: no messages are delivered." in text(ada.get(PAGE))
    groups.create(name="empty", mode="share", actor=ME)
    assert "There are no members, so nobody gets messages." in text(
        ada.get("/groups/empty")
    )


def test_a_lease_is_ended_after_a_preview(ada: Client, queue: int) -> None:
    worker = member("worker-1")
    send(*"abc")
    (leased,) = lease(worker)
    url = f"{PAGE}/runs/{queue}/0/release"
    seen = ada.get(url)
    assert "3 messages of worker-1 will be delivered to the next member that asks" in text(
        seen
    )
    assert [run.owner for run in runs(queue)] == [worker.text]
    assert "1 lease was ended." in text(confirm(ada, url, seen))
    assert [run.owner for run in runs(queue)] == [""]
    assert AuditLog.objects.get(verb="release").actor_name == "ada"
    assert report(worker, leased, whole=True) == "ok", "until somebody else has it"


def test_a_share_group_is_made_and_keeps_its_leases_settings(ada: Client) -> None:
    url = "/create/group"
    confirm(
        ada,
        url,
        filled(ada, url, name="jobs", mode="share", lease_ms="60000", max_deliveries="0"),
    )
    view = groups.describe(name="jobs", actor=ME)
    assert (view.mode, view.lease_ms, view.run_messages, view.max_deliveries) == (
        "share",
        60_000,
        10,
        0,
    )
    refused = filled(ada, url, name="more", mode="share", max_active_members="3")
    assert "has no owners of queues" in text(confirm(ada, url, refused))
