"""Pages on groups: by what they handle, and who falls behind fastest stands first."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Sample, Topic
from metadata.monitoring import alarms, metrics_history
from metadata.rules.groups.lag_trend import LagTrend
from portal.kit import progress
from tests.support import rows
from tests.support.forms import browser as browser_of

pytestmark = pytest.mark.one_engine


@pytest.fixture
def browser(metadata_db: None) -> Client:
    """A browser of an administrator, who looks at topic `orders` and its groups."""
    rows.world()
    rows.Member("m1").register()
    snapshot.refresh()
    return browser_of("ada", administrator=True)


def group(
    name: str, *, lag: int, per_minute: int, handled: int | None, pulled: int
) -> None:
    """A group that reads `orders` and whose lag has risen by so much a minute for ten
    minutes.
    """
    topic, now = Topic.objects.get(name="orders"), database_now()
    if not ConsumerGroup.objects.filter(name=name).exists():
        rows.group(name)
    ConsumerGroup.objects.filter(name=name).update(created_at=now - timedelta(hours=1))
    made = ConsumerGroup.objects.get(name=name)
    ConsumerGroupTopic.objects.filter(group=made, topic=topic).update(
        lag=lag, lag_ms=60_000, lag_at=now
    )
    for back in range(1, 11):
        Sample.objects.create(
            at=metrics_history.start_of_step(now, step_s=60) - timedelta(minutes=back),
            topic_ref=topic.pk, group_ref=made.pk,
            messages=pulled, handled=handled, lag=lag - back * per_minute, lag_ms=60_000,
        )  # fmt: skip


def text_of(page: bytes) -> str:
    """A page's words."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.decode()).split())


def test_the_first_page_names_who_falls_behind_fastest_first(browser: Client) -> None:
    group("huge", lag=900_000, per_minute=0, handled=6_000, pulled=6_000)
    group("billing", lag=30_000, per_minute=600, handled=60, pulled=60_000)
    page = text_of(browser.get("/").content)
    listed = page[page.index("Lag by group") :]
    assert listed.index("billing") < listed.index("huge"), (
        "although its lag is smaller, and it pulls most"
    )
    assert re.search(r"billing falls behind by (9\.\d|10\.\d)/s 30,000", listed)
    page = text_of(browser.get("/").content)
    assert re.search(
        r"pulled: [\d.]+ .*Unread messages [\d,]+ billing falls behind by \S+/s",
        page,
    )


def test_a_group_that_handles_nothing_needs_a_look(browser: Client) -> None:
    group("billing", lag=30_000, per_minute=0, handled=0, pulled=60_000)
    page = text_of(browser.get("/").content)
    assert (
        "Group billing has members and unread messages, but has handled none for minutes"
        in page
    )
    assert "billing handles nothing" in page
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="30,000 unread messages")
    assert "has handled none for minutes" not in text_of(browser.get("/").content), (
        "the alarm says it"
    )


def test_lists_and_the_group_show_what_was_handled_beside_what_was_pulled(
    browser: Client,
) -> None:
    group("billing", lag=30_000, per_minute=600, handled=60, pulled=60_000)
    listed = text_of(browser.get("/groups").content)
    assert re.search(
        r"billing falls behind by (9\.\d|10\.\d)/s 30,000 1 min 0\.\d\d 1 0 1 ", listed
    )
    page = text_of(browser.get("/groups/billing?span=1h").content)
    assert "sent handled pulled" in page
    assert "1.0 1,000" in page, "a message a second handled, a thousand pulled"


def test_what_was_not_counted_is_a_dash_and_no_zero(browser: Client) -> None:
    group("billing", lag=30_000, per_minute=600, handled=None, pulled=60_000)
    page = text_of(browser.get("/groups/billing?span=1h").content)
    assert "\N{EN DASH} 1,000" in page and "0.0 1,000" not in page


@pytest.mark.parametrize(
    ("said", "words", "tone"),
    [
        (LagTrend("catches_up", 10.0, 725.0), "catches up in 12 min", "ok"),
        (LagTrend("catches_up", 10.0, 20.4), "catches up in 20 s", "ok"),
        (LagTrend("falls_behind", 25.0), "falls behind by 25.0/s", "warn"),
        (LagTrend("stalled"), "handles nothing", "bad"),
        (LagTrend("unknown"), "not known", ""),
    ],
)
def test_a_trend_in_words(said: LagTrend, words: str, tone: str) -> None:
    found = progress.describe_progress(said)
    assert (str(found[0]), found[1]) == (words, tone)


def test_charts_show_nothing_of_before_a_topic_was_there(browser: Client) -> None:
    for back in range(3):  # brokers were there
        at = metrics_history.start_of_step(database_now(), step_s=60) - timedelta(
            minutes=back
        )
        Sample.objects.create(
            at=at,
            topic_ref=metrics_history.ALL_TOPICS,
            group_ref=metrics_history.ALL_GROUPS,
        )
    Topic.objects.filter(name="orders").update(
        created_at=database_now() - timedelta(seconds=90)
    )
    page = browser.get("/topics/orders?span=1h").content.decode()
    rates = page.partition("Messages per second")[2].partition("</table>")[0]
    rows = re.findall(r"<tr><td data.*?</tr>", rates, re.DOTALL)
    assert 60 <= len(rows) <= 61
    assert all(
        'data-value="">\N{EN DASH}<' in row and "0.0" not in row for row in rows[:-3]
    )
    assert 'data-value="0.0">' in rows[-2]


@pytest.mark.parametrize(
    ("minutes", "span"),
    [
        ((), "15m"),
        ((14,), "15m"),
        ((16,), "30m"),
        ((31,), "1h"),
        ((61,), "2h"),
        ((121,), "3h"),
        ((181, 20), "30m"),
        ((181,), "6h"),
        ((400,), "15m"),
        ((1600, 20), "30m"),
    ],
)
def test_charts_go_as_far_back_as_something_was_counted_lately(
    browser: Client, minutes: tuple[int, ...], span: str
) -> None:
    topic, made = (
        Topic.objects.get(name="orders").pk,
        ConsumerGroup.objects.get(name="billing").pk,
    )
    old = database_now() - timedelta(days=3)
    Topic.objects.update(created_at=old)
    ConsumerGroup.objects.update(created_at=old)
    for back in minutes:
        at = database_now() - timedelta(minutes=back)
        for topic_ref, group_ref in ((0, 0), (topic, 0), (topic, made)):
            Sample.objects.create(
                at=at, topic_ref=topic_ref, group_ref=group_ref, messages=1
            )
    for page in ("/", "/topics/orders", "/groups/billing"):
        assert chosen(browser, page) == span, page
        assert chosen(browser, f"{page}?span=7d") == "7d"
    ConsumerGroup.objects.update(created_at=database_now() - timedelta(minutes=5))
    assert chosen(browser, "/groups/billing") == "15m", (
        "what its topics got before it was there is not its own"
    )


def test_a_chart_without_a_chosen_span_begins_with_its_data(browser: Client) -> None:
    Topic.objects.update(created_at=database_now() - timedelta(days=3))
    topic = Topic.objects.get(name="orders").pk
    for back in range(40):
        at = metrics_history.start_of_step(
            database_now() - timedelta(minutes=back), step_s=60
        )
        for topic_ref in (0, topic):
            Sample.objects.create(at=at, topic_ref=topic_ref, group_ref=0, messages=1)
    steps = {
        query: browser.get(f"/topics/orders{query}").content.decode().count("<tr><td data-")
        for query in ("", "?span=1h")
    }
    # Two charts, of steps of a minute. Rates leave out a minute that has just begun.
    assert chosen(browser, "/topics/orders") == "1h"
    assert 2 * 40 - 1 <= steps[""] <= 2 * 42
    assert steps["?span=1h"] >= 2 * 60 - 1


def chosen(browser: Client, page: str) -> str:
    """The span that is marked."""
    (marked,) = re.findall(
        r'<a href="\?span=(\w+)" aria-current', browser.get(page).content.decode()
    )
    return marked
