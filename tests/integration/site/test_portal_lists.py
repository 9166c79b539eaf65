"""Lists of the portal: as many queries for one row as for many, sorted and searched by the database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from metadata import series, snapshot
from metadata.actors import Actor
from metadata.listing import topics as listing
from metadata.listing.pages import Wanted
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Topic
from metadata.users import EVERYTHING, LOOK
from tests.support import rows

ADA = Actor(kind="user", name="ada", rights={**EVERYTHING, **LOOK})
LISTS = (
    "/", "/topics", "/groups", "/subscriptions", "/consumers", "/rebalances", "/alarms", "/jobs", "/audit",
    "/nodes", "/brokers", "/keys", "/users", "/reports", "/pipeline",
)  # fmt: skip


@pytest.fixture
def browser(metadata_db: None) -> Client:
    """An administrator's browser."""
    user = get_user_model().objects.create_superuser("ada", password="enough characters")
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def queries(call: Callable[[], object]) -> int:
    """How many statements a call sends to the metadata database."""
    with CaptureQueriesContext(connection) as seen:
        call()
    return len(seen)


def many(count: int) -> None:
    """So many topics and groups, each reading a topic."""
    template, group = Topic.objects.get(name="orders"), ConsumerGroup.objects.get(name="billing")
    numbers = range(count)
    topics = [
        Topic(name=f"topic-{n:05}", state="ready", created_at=template.created_at, layout_version=1)
        for n in numbers
    ]
    Topic.objects.bulk_create(topics)
    ConsumerGroup.objects.bulk_create(
        [ConsumerGroup(name=f"group-{n:05}", created_at=group.created_at) for n in numbers]
    )
    made = zip(
        ConsumerGroup.objects.filter(name__startswith="group-").order_by("name"),
        Topic.objects.filter(name__startswith="topic-").order_by("name"),
        strict=True,
    )
    ConsumerGroupTopic.objects.bulk_create(
        [
            ConsumerGroupTopic(group=one, topic=topic, state="ready", start="earliest", lag=n, lag_ms=n,
                               created_at=group.created_at)
            for n, (one, topic) in enumerate(made)
        ]
    )  # fmt: skip


def test_a_page_of_many_rows_takes_as_many_queries_as_one_of_few(browser: Client) -> None:
    rows.world()
    rows.Member("m1").register()
    snapshot.refresh()
    for path in LISTS:
        browser.get(path)  # what is read once in the life of a process
    few = {path: queries(lambda path=path: browser.get(path)) for path in LISTS}  # type: ignore[misc]
    many(120)
    snapshot.refresh()
    assert {path: queries(lambda path=path: browser.get(path)) for path in LISTS} == few  # type: ignore[misc]


def test_lists_are_sorted_searched_and_cut(browser: Client) -> None:
    rows.world()
    many(120)
    worst = listing.groups(wanted=Wanted(sort="-lag"), actor=ADA)
    assert [one.lag for one in worst.items[:3]] == [119, 118, 117]
    assert (len(worst.items), worst.total, worst.pages) == (50, 121, 3)
    last = listing.groups(wanted=Wanted(sort="-lag", page=3), actor=ADA).items[-1]
    assert (last.name, last.lag) == ("billing", None)  # what is not known comes last
    found = listing.topics(wanted=Wanted(search="TOPIC-0011"), actor=ADA)
    assert [one.name for one in found.items] == [f"topic-{n:05}" for n in range(110, 120)]
    assert listing.topics(wanted=Wanted(search="100%_\\'\""), actor=ADA).items == ()
    for odd in ("?page=99999999999&sort=nonsense", "?page=-1&q=%00%27%22%25", "?sort=-&page=x"):
        for path in LISTS:
            assert browser.get(path + odd).status_code == 200, (path, odd)


def test_the_small_line_of_a_row_shows_what_was_counted(browser: Client) -> None:
    rows.world()
    topic = Topic.objects.get(name="orders")
    series.sent(topic_id=topic.pk, messages=7, bytes=70)
    series.flush()
    found = listing.topics(wanted=Wanted(), actor=ADA)
    assert found.items[0].minutes[-1] == 7 and sum(found.items[0].minutes) == 7
