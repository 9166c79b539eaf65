"""Lists of the portal: as many queries for one row as for many, sorted and searched by the
database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.listing import topic_lists
from metadata.listing.pages import ListQuery
from metadata.models import (
    Alarm,
    ApiKey,
    AuditLog,
    Broker,
    Consumer,
    ConsumerGroup,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    Heartbeat,
    JobRun,
    Rebalance,
    Report,
    Topic,
)
from metadata.monitoring import metrics_history
from metadata.users.accounts import EVERYTHING, LOOK
from portal.urls import urlpatterns
from tests.support import rows
from tests.support.forms import text

ADA = Actor(kind="user", name="ada", rights={**EVERYTHING, **LOOK})
NO_LISTS = {
    "logout",
    "set_language",
    "theme",
    "filter-save",
    "filter-delete",
    "messages-download",
}
OF_ONE = ("/topics/orders", "/groups/billing", "/groups/billing/moves")


def lists() -> Iterator[str]:
    """Every page to read that needs no name, as the routes tell: forms and actions are
    classes.
    """
    for route in urlpatterns:
        named, form = "<" in str(route.pattern), hasattr(route.callback, "view_class")
        if not named and not form and route.name not in NO_LISTS:
            yield f"/{route.pattern}"


LISTS = tuple(lists())


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


def many(count: int, *, first: int = 0) -> list[ConsumerGroup]:
    """So many topics and groups, each reading a topic and `orders`; the groups."""
    now = Topic.objects.get(name="orders").created_at
    numbers = range(first, first + count)
    Topic.objects.bulk_create(
        Topic(name=f"topic-{n:05}", state="ready", created_at=now, layout_version=1)
        for n in numbers
    )
    ConsumerGroup.objects.bulk_create(
        ConsumerGroup(name=f"group-{n:05}", created_at=now, owners="ada") for n in numbers
    )
    groups = list(ConsumerGroup.objects.filter(name__startswith="group-").order_by("name"))[
        first:
    ]
    topics = list(Topic.objects.filter(name__startswith="topic-").order_by("name"))[first:]
    orders = Topic.objects.get(name="orders")
    ConsumerGroupTopic.objects.bulk_create(
        ConsumerGroupTopic(group=group, topic=topic, state="ready", start="earliest", lag=lag,
        lag_ms=lag,
                           created_at=now)
        for n, group in enumerate(groups)
        for topic, lag in ((topics[n], n), (orders, 0))
    )  # fmt: skip
    return groups


def everything(count: int, *, first: int = 0) -> None:
    """So many of everything that lists show."""
    groups = many(count, first=first)
    now = groups[0].created_at
    _history(groups, now, first)
    for n, group in enumerate(groups, start=first):
        process = Consumer.objects.create(
            name=f"c{n}", incarnation=str(n), address="10.0.0.1"
        )
        member = ConsumerGroupConsumer.objects.create(
            group=group,
            process=process,
            identity=f"m{n}",
            consumer_id=f"id-{n}",
            joined_at=now,
        )
        Heartbeat.objects.create(membership=member, last_seen=now)


def _history(groups: Sequence[ConsumerGroup], now: datetime, first: int) -> None:
    """As many alarms, changes, runs, rebalances, keys, accounts, brokers and reports."""
    for n, group in enumerate(groups, start=first):
        Alarm.objects.create(
            kind="not_cleaned", name=f"t{n}", detail="x", first_at=now, last_at=now
        )
        AuditLog.objects.create(
            at=now, actor_kind="user", actor_name="ada", verb="x", kind="y", name=f"t{n}"
        )
        JobRun.objects.create(
            name="expire_messages", state="failed", started_at=now, finished_at=now
        )
        Rebalance.objects.create(group=group, generation=n, cause="a member came", at=now)
        ApiKey.objects.create(
            name=f"key-{n}", digest=f"{n:064}", rights={"send": ["*"]}, created_at=now
        )
        get_user_model().objects.create(username=f"user-{n}", password="!")
        Broker.objects.create(
            name=f"b{n}", url=f"http://b{n}", started_at=now, last_seen=now
        )
        Report.objects.create(name="volume", engine="direct", made_at=now)


def test_a_page_of_many_rows_takes_as_many_queries_as_one_of_few(browser: Client) -> None:
    rows.world()
    rows.Member("m1").register()
    snapshot.refresh()
    everything(2)
    snapshot.refresh()
    # some is read once
    few = {path: needed(browser, path) for path in (*LISTS, *OF_ONE) for _ in range(2)}
    everything(60, first=2)
    snapshot.refresh()
    assert {path: needed(browser, path) for path in (*LISTS, *OF_ONE)} == few
    assert {"/topics", "/groups", "/subscriptions", "/consumers", "/audit", "/jobs"} < set(
        LISTS
    )


def needed(browser: Client, path: str) -> int:
    """How many statements a page takes."""

    def call() -> None:
        assert browser.get(path).status_code == 200, path

    return queries(call)


def test_lists_are_sorted_searched_and_cut(browser: Client) -> None:
    rows.world()
    many(120)
    worst = topic_lists.groups(query=ListQuery(sort="-lag"), actor=ADA)
    assert [one.lag for one in worst.items[:3]] == [119, 118, 117]
    assert (len(worst.items), worst.total, worst.pages) == (50, 121, 3)
    last = topic_lists.groups(query=ListQuery(sort="-lag", page=3), actor=ADA).items[-1]
    assert (last.name, last.lag) == ("billing", None)  # what is not known comes last
    found = topic_lists.topics(query=ListQuery(search="TOPIC-0011"), actor=ADA)
    assert [one.name for one in found.items] == [f"topic-{n:05}" for n in range(110, 120)]
    assert topic_lists.topics(query=ListQuery(search="100%_\\'\""), actor=ADA).items == ()
    for odd in (
        "?page=99999999999&sort=nonsense",
        "?page=-1&q=%00%27%22%25",
        "?sort=-&page=x",
    ):
        for path in LISTS:
            assert browser.get(path + odd).status_code == 200, (path, odd)


def test_the_small_line_of_a_row_shows_what_was_counted(browser: Client) -> None:
    rows.world()
    topic = Topic.objects.get(name="orders")
    metrics_history.count_sent(topic_id=topic.pk, messages=7, bytes=70)
    metrics_history.flush()
    found = topic_lists.topics(query=ListQuery(), actor=ADA)
    *before, last = found.items[0].minutes
    assert max(before[-1], last) >= 7 and set(before[:-1]) == {0}
    shown = browser.get("/topics").content.decode()
    assert (
        'role="img"' in shown and "Messages per minute:" in shown and "<polyline" in shown
    )
    assert (
        browser.get("/subscriptions").status_code
        == browser.get("/groups").status_code
        == 200
    )


@pytest.fixture
def libraries(browser: Client) -> Client:
    """Topics of users, of Celery and of Django's tasks, and a group that reads them."""
    rows.world()
    users = ("orders", "shop.mails", "tasks.mails", "oven.low")
    internal = ("shop._log.celeryev", "shop._p3.mails", "shop._bindings", "tasks.mails.low")
    for name in (*users[1:], *internal):
        rows.topic(name, queues=1)
    for name in ("shop.mails", "shop._log.celeryev", "tasks.mails.low"):
        rows.subscribe("billing", name)
    Topic.objects.create(
        name="billing_orders_fail", kind="failure", state="ready", created_at=database_now()
    )
    snapshot.refresh()
    return browser


def listed(page: str, kind: str) -> list[str]:
    """The names of topics in the table of a page, in order; `kind`: of the links."""
    return re.findall(rf'<a href="/{kind}/([^"/]+)"><code>', page)


def test_topics_of_libraries_are_counted_behind_a_tab(libraries: Client) -> None:
    page = text(libraries.get("/topics"))
    assert listed(page, "topics") == ["orders", "oven.low", "shop.mails", "tasks.mails"]
    tabs = re.findall(
        r'<a href="(/topics[^"]*)"[^>]*>([^<]+)<span class="soft">(\d+)</span></a>', page
    )
    assert [(url, label.strip(), count) for url, label, count in tabs] == [
        ("/topics?kind=internal", "Internal topics", "4"),
        ("/topics?kind=failure", "Retry topics", "1"),
    ]
    internal = text(libraries.get("/topics?kind=internal"))
    names = ["shop._bindings", "shop._log.celeryev", "shop._p3.mails", "tasks.mails.low"]
    assert listed(internal, "topics") == names
    assert listed(text(libraries.get("/topics?kind=failure")), "topics") == [
        "billing_orders_fail"
    ]


def test_a_search_finds_topics_of_every_kind(libraries: Client) -> None:
    for name in ("shop._p3.mails", "tasks.mails.low", "billing_orders_fail", "oven.low"):
        assert listed(text(libraries.get(f"/topics?q={name}")), "topics") == [name]
    assert listed(text(libraries.get("/topics?kind=internal&q=oven")), "topics") == []
    found = text(libraries.get("/subscriptions?q=celeryev"))
    assert listed(found, "topics") == ["shop._log.celeryev"]


def test_a_list_without_topics_of_libraries_has_no_tab_for_them(browser: Client) -> None:
    rows.world()
    for path in ("/topics", "/subscriptions"):
        assert "Internal topics" not in text(browser.get(path))


def test_subscriptions_to_topics_of_libraries_are_counted_behind_a_tab(
    libraries: Client,
) -> None:
    page = text(libraries.get("/subscriptions"))
    assert listed(page, "topics") == ["orders", "shop.mails"]
    assert re.search(
        r'kind=internal"[^>]*>Internal topics\s*<span class="soft">2</span>', page
    )
    internal = text(libraries.get("/subscriptions?kind=internal"))
    assert sorted(listed(internal, "topics")) == ["shop._log.celeryev", "tasks.mails.low"]


@pytest.mark.parametrize(("lag", "tone"), [(0, ""), (7, "warn")])
def test_a_group_without_members_is_amber_only_if_something_is_unread(
    browser: Client, lag: int, tone: str
) -> None:
    rows.world()
    ConsumerGroupTopic.objects.update(lag=lag, lag_ms=1_000 * lag, lag_at=database_now())
    for path in ("/groups", "/subscriptions"):
        assert f'<span class="badge {tone}">no members</span>' in text(browser.get(path)), (
            path
        )


def test_the_audit_log_shows_who_with_the_address_below(browser: Client) -> None:
    AuditLog.objects.create(
        at=database_now(), actor_kind="user", actor_name="ada", address="2001:db8::1",
        verb="delete",
        kind="topic", name="orders",
    )  # fmt: skip
    page = text(browser.get("/audit"))
    assert '<a href="?who=ada">ada</a><small>user · 2001:db8::1</small>' in page
