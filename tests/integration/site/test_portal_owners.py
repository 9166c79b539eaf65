"""Owners: exactly what is theirs, from being named until they are not; and sessions that
end midway.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.retries import dead_letters
from messagestore.topology import topics
from metadata.cache import snapshot
from metadata.groups import groups
from metadata.models import Redrive
from metadata.topics import topic_rows
from metadata.users import accounts
from tests.support import failing
from tests.support.failing import ME
from tests.support.forms import Answer, browser, confirm, fields, filled, text

pytestmark = pytest.mark.one_engine

LOGIN = {"username": "olga", "password": "enough characters"}


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of `orders`, which `billing` reads; a group `orders` and a topic `billing`
    are there, too.
    """
    queue = failing.billing(retries=0)
    topics.create(name="billing", queues=1, actor=ME)
    groups.create(name="orders", actor=ME)
    snapshot.refresh()
    failing.send(b"treasure")
    publish(
        topic="billing", messages=[NewMessage(body=b"treasure")], batch_id=None, actor=ME
    )
    return queue


@pytest.fixture
def olga(queue: int) -> Client:
    """Somebody who owns nothing yet."""
    return browser("olga")


def own(topic: str = "", group: str = "") -> None:
    """Has olga own the topic, or the group; and nobody else."""
    for name in ("orders", "billing"):
        topic_rows.update(
            name=name, settings={"owners": "olga" if name == topic else "ann"}, actor=ME
        )
        groups.update(
            name=name, settings={"owners": "bob, olga" if name == group else ""}, actor=ME
        )
    snapshot.refresh()


def statuses(client: Client, *urls: str) -> list[int]:
    """What addresses answer."""
    return [client.get(url).status_code for url in urls]


def test_who_owns_a_topic_has_no_right_on_a_group_of_that_name_and_the_other_way_round(
    olga: Client,
) -> None:
    own(topic="orders")
    mine = ("/topics/orders/settings", "/topics/orders/send", "/topics/orders/delete")
    assert statuses(olga, *mine) == [200] * 3
    others = (
        "/groups/orders/settings",
        "/groups/orders/stop",
        "/groups/orders/delete",
        "/create/node",
    )
    assert statuses(olga, *others) == [403] * 4
    assert (
        olga.post(
            "/groups/orders/stop", {"confirmed": "yes", "form_number": "x" * 20}
        ).status_code
        == 403
    )
    assert "/groups/orders/stop" not in text(olga.get("/groups/orders"))
    own(group="billing")
    mine = ("/groups/billing/settings", "/groups/billing/stop", "/groups/billing/failures")
    assert statuses(olga, *mine) == [200] * 3
    others = ("/topics/billing/settings", "/topics/billing/send", "/topics/orders/settings")
    assert statuses(olga, *others) == [403] * 3


def test_who_owns_a_group_reads_no_bodies_of_the_topics_it_reads(
    olga: Client, queue: int
) -> None:
    own(group="billing")
    for url in (
        f"/messages/orders/{queue}-0",
        "/messages?topic=orders",
        "/messages?topic=billing",
    ):
        assert "treasure" not in text(olga.get(url)), url
    assert olga.get(f"/messages/orders/{queue}-0/body").status_code == 403
    own(topic="orders")
    assert "treasure" in text(olga.get(f"/messages/orders/{queue}-0"))
    assert "treasure" not in text(olga.get("/messages?topic=billing"))


def test_an_owner_who_is_none_any_more_cannot_confirm_what_was_previewed_before(
    olga: Client,
) -> None:
    own(group="billing")
    seen = olga.get("/groups/billing/stop")
    own()
    answer = olga.post("/groups/billing/stop", fields(seen))
    assert (
        answer.status_code == 403 and not groups.describe(name="billing", actor=ME).stopped
    )
    own(group="billing")
    assert "is paused" in text(confirm(olga, "/groups/billing/stop", seen))


@pytest.mark.parametrize("owners", ["OLGA", "olgab", "bolga", "olg", "o*", "ann.olga"])
def test_only_a_whole_name_makes_an_owner(olga: Client, owners: str) -> None:
    topic_rows.update(name="orders", settings={"owners": owners}, actor=ME)
    assert olga.get("/topics/orders/settings").status_code == 403


def test_an_owner_may_name_others_and_give_the_topic_away(olga: Client) -> None:
    own(topic="orders")
    seen = filled(olga, "/topics/orders/settings", owners="pia")
    answer = olga.post("/topics/orders/settings", fields(seen))
    assert answer.status_code == 302
    assert olga.get("/topics/orders/settings").status_code == 403
    assert browser("pia").get("/topics/orders/settings").status_code == 200


def back_in(client: Client, refused: Answer) -> Any:
    """Logs in where a request was sent to; the page that follows."""
    assert refused.status_code == 302 and refused["Location"].startswith("/login")
    (following,) = parse_qs(urlsplit(refused["Location"]).query)["next"]
    return client.get(client.post("/login", {**LOGIN, "next": following})["Location"])


def test_a_confirmation_that_comes_after_the_session_ended_does_nothing_and_leads_back(
    olga: Client, queue: int
) -> None:
    own(group="billing")
    failing.fail(failing.member(), queue, 0)
    (died,) = dead_letters.page(group="billing", actor=ME, limit=5, after="").messages
    url = "/groups/billing/dead/redrive"
    seen = filled(olga, f"{url}?ids={died.id}")
    olga.logout()
    page = back_in(olga, olga.post(url, fields(seen)))
    assert (
        not Redrive.objects.exists()
        and dead_letters.page(group="billing", actor=ME, limit=5, after="").messages
    )
    assert fields(page)["ids"] == died.id and "nothing was changed" in text(page)
    again = olga.post(url, {**fields(page), "confirmed": ""})
    assert "are redriven: 1." in text(again)
    assert (
        "The redrive has started" in text(confirm(olga, url, again))
        and Redrive.objects.count() == 1
    )


def test_a_stop_that_comes_after_the_session_ended_is_asked_for_again(olga: Client) -> None:
    own(group="billing")
    seen = olga.get("/groups/billing/stop")
    olga.logout()
    page = back_in(olga, olga.post("/groups/billing/stop", fields(seen)))
    assert not groups.describe(name="billing", actor=ME).stopped
    assert "is paused" in text(confirm(olga, "/groups/billing/stop", page))


def test_who_may_only_manage_is_refused_other_owners_before_the_confirmation(
    olga: Client,
) -> None:
    rights = {"manage": ["*"]}
    accounts.update(name="olga", administrator=False, active=True, rights=rights, actor=ME)
    for url in ("/topics/orders/settings", "/groups/billing/settings"):
        assert filled(olga, url, owners="olga").status_code == 403
        assert filled(olga, url, description="fine").status_code == 200
    for url, more in (("/create/topic", {"queues": "1"}), ("/create/group", {})):
        assert filled(olga, url, name="new", owners="olga", **more).status_code == 403
