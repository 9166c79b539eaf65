"""The search over everything: names, ids, keys and actions, as far as the person may use
them.
"""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from metadata.cache import snapshot
from tests.support import rows
from tests.support.forms import browser as browser_of

pytestmark = pytest.mark.one_engine


@pytest.fixture
def queues(metadata_db: None) -> tuple[int, ...]:
    """Topic orders and group billing, and more of like names; the queues of orders."""
    made = rows.world()
    rows.topic("orders.archive", queues=1)
    rows.group("billing-eu")
    snapshot.refresh()
    return made


@pytest.fixture
def ada(queues: tuple[int, ...]) -> Client:
    return browser_of("ada", administrator=True)


def found(browser: Client, query: str) -> list[tuple[str, str]]:
    """(label, address) of each result."""
    answer = browser.get("/search", {"q": query})
    assert answer.status_code == 200
    rows = re.findall(
        r'<li><a href="([^"]*)"><span class="badge">[^<]*</span> ([^<]*)<',
        answer.content.decode(),
    )
    return [(unescape(label), unescape(href)) for href, label in rows]


def test_a_part_of_a_name_finds_topics_and_groups_the_nearest_first(ada: Client) -> None:
    labels = [label for label, _ in found(ada, "order")]
    assert labels[:2] == ["orders", "orders.archive"]
    assert found(ada, "BILL")[0] == ("billing", "/groups/billing")


def test_an_action_is_found_by_its_beginning_and_a_part_of_a_name(ada: Client) -> None:
    assert ("Pause: billing", "/groups/billing/stop") in found(ada, "pause bil")
    assert found(ada, "exp orders")[0] == ("Expand: orders", "/topics/orders/expand")
    assert ("Create a user", "/create/user") in found(ada, "create user")


def test_a_message_is_found_by_its_id_and_by_its_key(
    ada: Client, queues: tuple[int, ...]
) -> None:
    name = f"{queues[0]}-17"
    assert found(ada, name)[0] == (f"orders {name}", f"/messages/orders/{name}")
    assert found(ada, "key:42/A orders")[0] == (
        "orders, key 42/A",
        "/messages?topic=orders&key=42%2FA",
    )


def test_what_a_person_may_not_do_is_not_found(queues: tuple[int, ...]) -> None:
    uma = browser_of("uma")
    assert ("billing", "/groups/billing") in found(uma, "billing")
    assert not [
        href for _, href in found(uma, "billing") if href.endswith(("/stop", "/delete"))
    ]
    assert found(uma, "pause billing") == [] and found(uma, "create user") == []


@pytest.mark.parametrize(
    "query", ["<script>", "%", "\\", "\0", "'\"", "👾" * 300, "key:", "999999999-1", ":"]
)
def test_whatever_is_asked_is_answered(ada: Client, query: str) -> None:
    assert found(ada, query) == []


def test_a_key_stroke_costs_no_query_for_names(
    ada: Client, django_assert_max_num_queries: object
) -> None:
    with django_assert_max_num_queries(8):  # type: ignore[operator]  # session, person, clock
        found(ada, "orders")


def test_a_field_for_a_name_offers_those_there_are_and_follows_what_is_typed(
    ada: Client,
) -> None:
    page = ada.get("/groups/billing/reset", {"topic": "arch"}).content.decode()
    assert '<datalist id="topic_names"><option value="orders.archive"></datalist>' in page
    offered = re.findall(r'<datalist id="source_group_names">(.*?)</datalist>', page)
    assert '<option value="billing-eu">' in offered[0] and "orders" not in offered[0]
    assert '<datalist id="node_names"><option' in ada.get("/create/topic").content.decode()
    typed = ada.get(
        "/names/group", {"field": "source_group", "source_group": "BILL"}
    ).content.decode()
    assert typed == '<option value="billing"><option value="billing-eu">'
    everything = ada.get(
        "/names/topic", {"field": "topic", "topic": "nothing like it"}
    ).content.decode()
    assert '<option value="orders">' in everything
    assert ada.get("/names/node").status_code == 404
