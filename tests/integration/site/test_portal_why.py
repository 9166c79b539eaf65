"""The card "Why is it behind?" on the page of a group, with causes planted in rows and
messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

import pytest
from django.test import Client

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Target
from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import subscriptions, topics
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.groups import groups, subscription_rows
from metadata.models import (
    ConsumerGroup,
    DeadLetterCount,
    Heartbeat,
    QueueOffset,
    Rebalance,
    Sample,
    Topic,
)
from metadata.monitoring import counters, metrics_history
from metadata.rules.groups import lag_trend
from metadata.rules.membership.process_report import ProcessStatus, SlowHandler, pack
from tests.support import rows
from tests.support.forms import browser as browser_of
from tests.support.rows import ME

pytestmark = pytest.mark.one_engine

WHY = "Why is it behind?"
MINUTES = 10


class World(NamedTuple):
    """Topic `orders` with four queues, and a member of group `billing` that owns them."""

    queues: tuple[int, ...]
    member: rows.Member
    browser: Client


@pytest.fixture
def world(node: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = topics.create(name="orders", queues=4, actor=ME)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    member = rows.Member("m1").register()
    for _ in range(3):
        member.beat()
    assert len(member.owned) >= 4
    monkeypatch.setattr(lag_trend, "FRESH_MS", 0)  # what was sent just now is old here
    yield World(
        tuple(one.queue.queue for one in made.queues),
        member,
        browser_of("ada", administrator=True),
    )
    metrics_history._counters = counters.Counters()


def send(world: World, *counts: int, key: str | None = None) -> None:
    """Send so many messages to the queues, one after the other."""
    for queue, count in zip(world.queues, counts, strict=False):
        messages = [NewMessage(body=b"x", queue=queue, key=key)] * count
        if messages:
            publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def minutes(
    *, lag: int, growing: int, handled: int, pulled: int = 600, sent: int = 1200
) -> None:
    """What was counted in each of the last minutes; the lag has come to this by so many a
    minute.
    """
    topic, group = (
        Topic.objects.get(name="orders").pk,
        ConsumerGroup.objects.get(name="billing").pk,
    )
    last = metrics_history.start_of_step(database_now(), step_s=60)
    for back in range(1, MINUTES + 1):
        at = last - timedelta(minutes=back)
        Sample.objects.create(at=at, topic_ref=topic, messages=sent)
        Sample.objects.create(
            at=at, topic_ref=topic, group_ref=group, messages=pulled, handled=handled,
            lag=max(0, lag - back * growing), lag_ms=60_000,
        )  # fmt: skip


def falling(world: World, *counts: int, key: str | None = None) -> None:
    """A group that handles half of what is sent."""
    send(world, *counts, key=key)
    minutes(lag=sum(counts), growing=sum(counts) // 12, handled=600)


def no_members(world: World) -> None:
    send(world, 5, 5, 5, 5)
    world.member.leave()


def paused(world: World) -> None:
    send(world, 5, 5, 5, 5)
    groups.update(name="billing", settings={"stopped": True}, actor=ME)


def paused_topic(world: World) -> None:
    send(world, 5, 5, 5, 5)
    subscription_rows.update(
        group="billing", topic="orders", settings={"stopped": True}, actor=ME
    )


def paused_queue(world: World) -> None:
    send(world, 9)
    settings = {"stopped_queues": [world.queues[0]]}
    subscription_rows.update(group="billing", topic="orders", settings=settings, actor=ME)


def silent_member(world: World) -> None:
    falling(world, 60, 60, 60, 60)
    rows.silence(world.member, seconds=10)


def no_owner(world: World) -> None:
    falling(world, 60, 60, 60, 60)
    QueueOffset.objects.filter(queue=world.queues[0]).update(owner=None)


def hanging_handler(world: World) -> None:
    send(world, 60, 60, 60, 60)
    minutes(lag=240, growing=20, handled=0, pulled=6000)


def long_handler(world: World) -> None:
    hanging_handler(world)
    report = ProcessStatus(4, 1, 12, 3_000, 70, 2, SlowHandler(world.queues[0], 7, 90_000))
    Heartbeat.objects.update(report=pack(report), reported_at=database_now())


def no_pulls(world: World) -> None:
    send(world, 60, 60, 60, 60)
    minutes(lag=240, growing=20, handled=0, pulled=0)


def hot_queue(world: World) -> None:
    falling(world, 240, 1, 1, 1)


def hot_key(world: World) -> None:
    falling(world, 240, 1, 1, 1, key="acme")


def failures(world: World) -> None:
    falling(world, 60, 60, 60, 60)
    group, now = ConsumerGroup.objects.get().pk, database_now()
    DeadLetterCount.objects.create(
        group_ref=group, messages=9000, last_hour=9000, newest_at=now, counted_at=now
    )


def rebalances(world: World) -> None:
    falling(world, 60, 60, 60, 60)
    for n in range(5):
        made = Rebalance.objects.create(
            group=ConsumerGroup.objects.get(),
            generation=100 + n,
            cause="m2 left",
            at=database_now(),
        )
        made.moves.create(queue_id=world.queues[0], from_member="m2", to_member="m1")


def reset(world: World) -> None:
    send(world, 60, 60, 60, 60)
    for to in ("latest", "earliest"):
        offset_reset.reset(group="billing", topic="orders", target=Target(to=to), actor=ME)


def slow_handler(world: World) -> None:
    falling(world, 60, 60, 60, 60)


PLANTED: dict[str, tuple[Callable[[World], None], str]] = {
    "no_members": (no_members, "The group has no members"),
    "paused": (paused, "The group is paused"),
    "paused_topic": (paused_topic, "Reading is paused"),
    "paused_queue": (paused_queue, "Queues are paused"),
    "silent_member": (silent_member, "A member is silent"),
    "no_owner": (no_owner, "Queues have no owner"),
    "hanging_handler": (hanging_handler, "Nothing is handled"),
    "long_handler": (long_handler, "A handler runs for very long"),
    "no_pulls": (no_pulls, "Members ask for no messages"),
    "hot_queue": (hot_queue, "One queue has most messages"),
    "hot_key": (hot_key, "One key has most messages"),
    "failures": (failures, "Many messages fail"),
    "rebalances": (rebalances, "Members come and go"),
    "reset": (reset, "Offsets were reset"),
    "slow_handler": (slow_handler, "The handler is too slow"),
}


def titles(world: World) -> list[str]:
    """The causes that the group's page names."""
    page = world.browser.get("/groups/billing").content.decode()
    assert (WHY in page) == ('class="causes"' in page)
    return re.findall(
        r"<strong>([^<]*)</strong>",
        page.partition('class="causes"')[2].partition("</ul>")[0],
    )


@pytest.mark.parametrize(("plant", "title"), PLANTED.values(), ids=PLANTED)
def test_the_page_names_the_planted_cause_alone(
    world: World, plant: Callable[[World], None], title: str
) -> None:
    plant(world)
    snapshot.refresh()
    assert titles(world) == [title]


def test_the_page_of_a_healthy_group_names_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert titles(world) == [], "nothing was sent"
    monkeypatch.setattr(lag_trend, "FRESH_MS", 60_000)
    send(world, 30, 2, 2, 2, key="acme")
    minutes(lag=30, growing=0, handled=1200)
    assert titles(world) == [], "what is unread came just now"
    rows.silence(world.member, seconds=8)
    assert titles(world) == [], "its heartbeat is a little late"
    QueueOffset.objects.filter(queue=world.queues[0]).update(owner=None)
    assert titles(world) == [], "a queue is being handed over"


def test_dead_letters_of_a_group_that_waits_are_no_cause(world: World) -> None:
    send(world, 6, 6, 6, 6)
    minutes(lag=24, growing=0, handled=1200)
    Sample.objects.filter(at__gte=database_now() - timedelta(minutes=3)).update(
        handled=0, messages=0
    )
    now = database_now()
    DeadLetterCount.objects.create(
        group_ref=ConsumerGroup.objects.get().pk,
        messages=5,
        last_hour=5,
        newest_at=now,
        counted_at=now,
    )
    assert titles(world) == []


def test_a_queue_is_called_by_its_topic_and_the_key_by_its_name(world: World) -> None:
    hot_key(world)
    page = world.browser.get("/groups/billing").content.decode()
    assert "99 % of the unread messages are in orders/0" in page and "the key acme" in page


def test_the_page_shows_what_the_process_of_a_member_does(world: World) -> None:
    assert (
        "Processes of the members"
        not in world.browser.get("/groups/billing").content.decode()
    )
    long_handler(world)

    page = world.browser.get("/groups/billing").content.decode()

    card = page.partition("Processes of the members")[2].partition("</table>")[0]
    assert "1 of 4" in card and "orders/0:7" in card
    assert f'href="/messages/orders/{world.queues[0]}-7"' in card


def test_dead_letters_are_on_the_first_page_of_a_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_trend, "FRESH_MS", 60_000)
    send(world, 3)
    page = world.browser.get("/groups/billing").content.decode()
    assert "Dead letters</span>" not in page and 'class="tile ok"' in page
    assert 'class="badge ok">ok<' not in page, (
        "an open queue does not tell that its messages are handled"
    )
    group = ConsumerGroup.objects.get(name="billing")
    now = database_now()
    DeadLetterCount.objects.create(
        group_ref=group.pk, messages=1_500, newest_at=now, counted_at=now
    )
    page = world.browser.get("/groups/billing").content.decode()
    assert (
        'class="tile bad" href="/groups/billing/failures"><span class="label">Dead letters</span>'
        in page
    )
    assert (
        'dead letters <span class="badge bad">1,500</span></a>' in page
        and 'class="tile ok"' not in page
    )
    listed = world.browser.get("/groups").content.decode()
    assert '<a href="/groups/billing"><span class="bad-ink">1,500</span></a>' in listed
    DeadLetterCount.objects.update(seen_at=now)
    page = world.browser.get("/groups/billing").content.decode()
    assert 'dead letters <span class="badge warn">1,500' in page
