"""Producers of topics: counted in memory, added to rows that stay few, and shown with their
last hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models import F

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.errors import Forbidden, NotFound
from metadata.models import TopicProducer
from metadata.topics import producers, topic_rows
from tests.support import rows
from tests.support.forms import browser as browser_of
from tests.support.rows import ME

SHOP = Actor(kind="key", name="shop", rights={"produce": ("orders",)})


@pytest.fixture(autouse=True)
def topic(metadata_db: None) -> Iterator[int]:
    """The topic `orders`; nothing is counted in this process before, and after."""
    producers._counts.take()
    rows.node()
    rows.topic()
    yield topic_rows.find_topic(name="orders", actor=ME).id
    producers._counts.take()


def sent(
    topic: int, messages: int = 1, *, address: str = "10.0.0.1", sdk: str = "lib/1"
) -> None:
    producers.count_sent(
        topic_id=topic, actor=SHOP, address=address, sdk=sdk, messages=messages
    )


def shown() -> dict[tuple[str, str, str], int]:
    found = producers.list_producers(topic="orders", actor=ME)
    return {(one.name, one.address, one.sdk): one.messages_last_hour for one in found}


def test_what_processes_count_adds_up_by_key_address_and_client(topic: int) -> None:
    for _ in range(3):  # one flush of each of three processes
        sent(topic, 2)
        sent(topic, 5, address="10.0.0.2")
        sent(topic, 1, sdk="Lib/1")
        assert producers.flush() == 3

    assert shown() == {
        ("shop", "10.0.0.1", "lib/1"): 6,
        ("shop", "10.0.0.2", "lib/1"): 15,
        ("shop", "10.0.0.1", "Lib/1"): 3,
    }
    assert producers.flush() == 0


def test_the_hour_before_counts_for_the_part_that_is_within_the_last_hour(
    topic: int,
) -> None:
    sent(topic, 600)
    producers.flush()
    TopicProducer.objects.update(hour=F("hour") - 1)
    part = 1 - database_now().timestamp() / 3600 % 1
    before = 600 * part
    assert before - 30 <= shown()["shop", "10.0.0.1", "lib/1"] <= before + 1

    sent(topic, 7)
    producers.flush()

    assert before - 23 <= shown()["shop", "10.0.0.1", "lib/1"] <= before + 8
    row = TopicProducer.objects.get()
    assert (row.messages, row.messages_before) == (7, 600)


def test_hours_without_a_message_are_forgotten(topic: int) -> None:
    sent(topic, 600)
    producers.flush()
    TopicProducer.objects.update(hour=F("hour") - 5, messages_before=9)
    assert shown() == {("shop", "10.0.0.1", "lib/1"): 0}

    sent(topic, 7)
    producers.flush()

    assert shown() == {("shop", "10.0.0.1", "lib/1"): 7}


def test_a_topic_keeps_the_producers_that_were_seen_last(
    topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_ROWS", 3)
    for n in range(3):
        sent(topic, address=f"10.0.0.{n}")
    producers.flush()
    TopicProducer.objects.filter(address="10.0.0.1").update(
        last_seen=F("last_seen") - timedelta(hours=1)
    )

    sent(topic, address="10.0.0.9")
    producers.flush()

    assert sorted(address for _, address, _ in shown()) == [
        "10.0.0.0",
        "10.0.0.2",
        "10.0.0.9",
    ]


def test_of_many_new_producers_at_once_those_with_the_most_messages_are_kept(
    topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that names itself anew with each request makes no more rows than others."""
    monkeypatch.setattr(producers, "MAX_ROWS", 3)
    for n in range(50):
        sent(topic, sdk=f"random-{n}")
    sent(topic, 9)
    producers.flush()

    assert TopicProducer.objects.count() == 3
    assert shown()["shop", "10.0.0.1", "lib/1"] == 9


def test_a_process_counts_so_many_producers_and_no_more(
    topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_COUNTED", 2)
    for n in range(9):
        sent(topic, sdk=f"random-{n}")
    sent(topic, sdk="random-0")

    assert sorted(producers._counts.take().values()) == [1, 2]


def test_a_flush_that_fails_loses_nothing(
    topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(topic, 4)
    with monkeypatch.context() as patch:
        patch.setattr(producers, "database_now", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            producers.flush()
    sent(topic, 3)
    producers.flush()

    assert shown() == {("shop", "10.0.0.1", "lib/1"): 7}


def test_rows_go_after_seven_days_without_a_message(topic: int) -> None:
    sent(topic)
    sent(topic, address="10.0.0.2")
    producers.flush()
    TopicProducer.objects.filter(address="10.0.0.2").update(
        last_seen=F("last_seen") - timedelta(days=8)
    )

    assert producers.prune() == 1
    assert [address for _, address, _ in shown()] == ["10.0.0.1"]


def test_who_has_no_right_on_a_topic_does_not_see_its_producers(topic: int) -> None:
    assert producers.list_producers(topic="orders", actor=SHOP) == []
    with pytest.raises(Forbidden):
        producers.list_producers(
            topic="orders", actor=Actor(kind="key", name="x", rights={"produce": ("a",)})
        )
    with pytest.raises(NotFound):
        producers.list_producers(topic="nope", actor=ME)


def test_the_page_of_a_topic_shows_them(topic: int) -> None:
    snapshot.refresh()
    browser = browser_of("ada", administrator=True)
    page = browser.get("/topics/orders").content.decode()
    assert "Nobody has sent to this topic in the last seven days." in page

    sent(topic, 1200, address="10.0.0.7", sdk="<b>lib</b>")
    producers.flush()

    card = browser.get("/topics/orders").content.decode().partition("<h2>Producers</h2>")[2]
    assert "10.0.0.7" in card and "&lt;b&gt;lib" in card and "<b>lib" not in card
