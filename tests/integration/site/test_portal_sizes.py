"""Pages of what is larger, smaller or named longer than anybody has it."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.models import (
    Consumer,
    ConsumerGroup,
    ConsumerGroupConsumer,
    Heartbeat,
    Queue,
    QueueOffset,
    Topic,
)
from tests.support import failing
from tests.support.forms import browser, text

TOPIC_ACTIONS = ("settings", "expand", "shrink", "clean", "send", "delete", "delayed")
QUEUES, MEMBERS = 10_000, 1_000
QUEUE = re.compile(r'data-label="Queue" class="code" title="([^"]*)"')


@pytest.fixture
def ada(node: str, failure_node: str) -> Client:
    """An administrator's browser; group `billing` reads topic `orders`."""
    failing.billing()
    return browser("ada", administrator=True)


def grow() -> None:
    """Gives the topic and the group so many queues and members, without tables on the node."""
    topic, group, now = (
        Topic.objects.get(name="orders"),
        ConsumerGroup.objects.get(),
        database_now(),
    )
    first = topic.queues.get()
    Queue.objects.bulk_create(
        Queue(
            topic=topic, node=first.node, number=number, state="read_write", state_since=now
        )
        for number in range(1, QUEUES)
    )
    new = Queue.objects.filter(topic=topic, number__gt=0)
    QueueOffset.objects.bulk_create(
        QueueOffset(group=group, queue=queue, epoch=1) for queue in new
    )
    Consumer.objects.bulk_create(
        Consumer(name=f"c{n}", incarnation=str(n)) for n in range(MEMBERS)
    )
    ConsumerGroupConsumer.objects.bulk_create(
        ConsumerGroupConsumer(
            group=group,
            process=process,
            identity=process.name,
            consumer_id=process.name,
            joined_at=now,
        )
        for process in Consumer.objects.all()
    )
    Heartbeat.objects.bulk_create(
        Heartbeat(membership=one, last_seen=now)
        for one in ConsumerGroupConsumer.objects.all()
    )
    snapshot.refresh()


def test_many_queues_and_members_are_shown_by_the_hundred(ada: Client) -> None:
    grow()
    page = text(ada.get("/topics/orders"))
    assert "10,000 rows" in page and "Page 1 of 100" in page and len(page) < 400_000
    first, page = set(QUEUE.findall(page)), text(ada.get("/topics/orders?queues=2"))
    second = set(QUEUE.findall(page))
    assert len(first) == len(second) == 100 and not first & second and "?queues=3" in page
    assert "Page 100 of 100" in text(ada.get("/topics/orders?queues=9999999"))
    page = text(ada.get("/groups/billing"))
    assert "10,000 rows" in page and "1,000 rows" in page and len(page) < 600_000
    assert "Page 2 of 10" in text(ada.get("/groups/billing?members=2"))


@pytest.mark.one_engine
@pytest.mark.parametrize("wrong", ["0", "-1", "x", "²", "99999999999999", ""])
def test_a_page_that_is_none_is_the_first(ada: Client, wrong: str) -> None:
    grow_queues = Queue.objects.get(topic__name="orders")
    Queue.objects.bulk_create(
        Queue(topic=grow_queues.topic, node=grow_queues.node, number=number, state="read_write",
              state_since=database_now())
        for number in range(1, 150)
    )  # fmt: skip
    snapshot.refresh()
    assert "Page 1 of 2" in text(ada.get("/topics/orders", {"queues": wrong}))


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "page",
    ["", "/settings", "/expand", "/shrink", "/clean", "/send", "/delete", "/delayed"],
)
def test_a_topic_without_queues_has_pages_that_say_what_to_do(
    ada: Client, page: str
) -> None:
    Topic.objects.create(
        name="bare", state="creating", created_at=database_now(), layout_version=0
    )
    snapshot.refresh()
    answer = ada.get(f"/topics/bare{page}", headers={"accept": "text/html"})
    assert answer.status_code < 500 and 'class="side"' in text(answer)
    if not page:
        assert "No queues yet." in text(answer) and "creating" in text(answer)
