"""The first page says what is wrong and where; alarms are acknowledged; what was seen is
quiet.
"""

from __future__ import annotations

import re

import pytest
from django.test import Client

from messagestore.consume import group_lag
from messagestore.inspect import raise_alarms
from messagestore.nodes import corruption_alarms
from messagestore.pool import node_pools
from messagestore.tables import queue_sql
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.errors import Invalid, StoreCorrupt
from metadata.groups import groups
from metadata.listing import overview_lists
from metadata.models import (
    Alarm,
    AuditLog,
    ConsumerGroup,
    ConsumerGroupTopic,
    DbNode,
    JobRun,
    Queue,
)
from metadata.monitoring import alarms
from metadata.nodes import node_rows
from metadata.rules.alarm_texts import alarm_text
from portal.kit import outages
from portal.views.nodes import nodes
from tests.support import failing, rows
from tests.support.failing import ME, fail
from tests.support.forms import browser, confirm, filled, text
from tests.support.tampering import plant

pytestmark = pytest.mark.one_engine


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of topic `orders`, which group `billing` reads."""
    return failing.billing(retries=0)


@pytest.fixture
def ada(queue: int) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def look() -> None:
    snapshot.refresh()
    raise_alarms.update_alarms(every_minutes={})


def test_dead_messages_stand_on_the_first_page_until_somebody_says_they_were_seen(
    queue: int, ada: Client
) -> None:
    look()
    assert "Everything is in order" in text(ada.get("/"))
    failing.send(b"a", b"b")
    fail(failing.member(), queue, 0, 1)
    look()
    page = text(ada.get("/"))
    assert "Everything is in order" not in page
    assert 'href="/groups/billing/failures">Group billing has 2 dead letters' in page
    listed = text(ada.get("/groups/billing/failures"))
    assert "Redrive all 2 dead letters" in listed and "Delete all 2 dead letters" in listed
    preview = ada.get("/groups/billing/dead/seen")
    assert "are marked as seen" in text(confirm(ada, "/groups/billing/dead/seen", preview))
    page = text(ada.get("/"))
    assert "Everything is in order" in page and "seen by ada" in page
    assert "Mark as seen" not in text(ada.get("/groups/billing/failures"))


def test_a_redrive_says_whose_and_how_many_and_of_which_kind(
    queue: int, ada: Client
) -> None:
    failing.send(b"a", b"b")
    who = failing.member()
    fail(who, queue, 0, error="ValueError: bad")
    fail(who, queue, 1, error="KeyError: x")
    some = text(ada.get("/groups/billing/failures?topic=orders&error=ValueError"))
    assert "Redrive the 1 of this kind" in some and "Delete the 1 of this kind" in some
    preview = text(filled(ada, "/groups/billing/dead/drop?topic=orders&error=ValueError"))
    assert "Dead letters of group billing that are deleted for good: 1." in preview
    assert "Dead letters of topic orders with error ValueError." in preview
    preview = text(filled(ada, "/groups/billing/dead/redrive?everything=on"))
    assert "Dead letters of group billing that are redriven: 2." in preview
    assert "All dead letters, of all topics and errors." in preview


def test_an_alarm_is_a_line_with_a_link_and_quiet_once_somebody_looks_after_it(
    queue: int, ada: Client
) -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="7 unread messages")
    page = text(ada.get("/"))
    assert (
        'href="/groups/billing">Alarm: far behind, billing/orders: 7 unread messages'
        in page
    )
    assert "acknowledge" in text(ada.get("/alarms"))
    url = "/alarms/lag/billing/orders"
    assert "The alarm is acknowledged." in text(confirm(ada, url, ada.get(url)))
    assert "Everything is in order" in text(ada.get("/")) and "is acknowledged" in text(
        ada.get("/")
    )
    assert AuditLog.objects.get(verb="acknowledge").actor_name == "ada"
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    assert "No active alarms" in text(ada.get("/alarms"))
    assert "billing/orders" in text(ada.get("/alarms?show=over"))


def test_metadata_on_another_server_is_an_alarm_and_nodes_name_the_server(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Metadata is written on" not in text(ada.get("/nodes"))
    monkeypatch.setattr(nodes, "written_on", lambda: "db2:3306")
    assert "Metadata is written on db2:3306." in text(ada.get("/nodes"))
    detail = alarm_text("metadata_moved", before="db1:3306", after="db2:3306")
    alarms.raise_alarm(kind="metadata_moved", name="metadata", detail=detail)
    assert f'href="/nodes">Alarm: metadata on another server, metadata: {detail}' in text(
        ada.get("/")
    )
    # It tells of an event, so it is over when somebody has seen it.
    acknowledged(ada, "metadata_moved", "metadata")
    assert "No active alarms" in text(ada.get("/alarms"))


def acknowledged(ada: Client, kind: str, name: str) -> None:
    url = f"/alarms/{kind}/{name}"
    assert "The alarm is acknowledged." in text(confirm(ada, url, ada.get(url)))


def quiet(ada: Client, kind: str, name: str) -> bool:
    """Whether the first page says one thing of what an alarm tells, and nothing once it is
    acknowledged.
    """
    before = text(ada.get("/")).partition("needs attention")[2].partition("</ul>")[0]
    assert before.count("<li") == 1 and "Alarm: " in before, before
    acknowledged(ada, kind, name)
    return "Everything is in order" in text(ada.get("/"))


def unread() -> None:
    """Ten messages of `orders` that nobody has read for an hour, as the jobs that look at
    nodes saw them.
    """
    failing.send(*[b"a"] * 10)
    Queue.objects.filter(topic__name="orders").update(head_seen=10)
    assert group_lag.record() >= 1
    ConsumerGroupTopic.objects.filter(lag__gt=0).update(lag_ms=3_600_000)


@pytest.mark.parametrize("reads", [True, False], ids=["with a member", "without"])
def test_a_real_lag_is_said_once_and_is_quiet_once_its_alarm_is_acknowledged(
    queue: int, ada: Client, reads: bool
) -> None:
    if reads:
        failing.member()
    unread()
    said = (
        "Group billing lags"
        if reads
        else "Group billing has unread messages in queues without a consumer"
    )
    assert said in text(ada.get("/")), "no alarm tells of it yet"
    look()
    assert Alarm.objects.get(kind="lag", ended_at=None).name == "billing/orders"
    assert quiet(ada, "lag", "billing/orders")
    look()
    assert "Everything is in order" in text(ada.get("/")), "it was acknowledged"
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    assert said in text(ada.get("/")), "the alarm is over, the lag is not"
    look()
    assert "Alarm: far behind, billing/orders" in text(ada.get("/")), "it is raised again"


def test_a_group_of_which_an_alarm_tells_is_not_said_to_be_paused_or_stalled(
    queue: int, ada: Client
) -> None:
    unread()
    groups.update(name="billing", settings={"stopped": True}, actor=ME)
    assert "Group billing is paused" in text(ada.get("/"))
    alarms.raise_alarm(kind="no_consumer", name="billing/orders", detail="unread messages")
    assert quiet(ada, "no_consumer", "billing/orders")


def test_dead_letters_are_said_once_and_are_quiet_once_their_alarm_is_acknowledged(
    queue: int, ada: Client
) -> None:
    failing.send(b"a", b"b")
    fail(failing.member(), queue, 0, 1)
    look()
    assert "Group billing has 2 dead letters" in text(ada.get("/"))
    alarms.raise_alarm(
        kind="dead_growing", name="billing", detail="2 new dead letters in the last hour"
    )
    assert quiet(ada, "dead_growing", "billing")


def test_a_node_without_room_is_quiet_once_its_alarm_is_acknowledged_but_not_when_it_goes_away(
    queue: int, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_rows.record_disk_state(node_id=DbNode.objects.get(name="main").pk, state="low")
    snapshot.refresh()
    assert "Node main is running out of disk space" in text(ada.get("/"))
    alarms.raise_alarm(kind="node_low", name="main", detail="4 % free")
    assert quiet(ada, "node_low", "main")
    monkeypatch.setattr(outages, "silent_nodes", lambda: ["main"])
    assert "Node main does not answer" in text(ada.get("/"))


def test_a_job_that_failed_is_quiet_once_its_alarm_is_acknowledged_but_others_are_not(
    queue: int, ada: Client
) -> None:
    for name in ("cleanup", "cleanup", "roll_up"):
        now = database_now()
        JobRun.objects.create(name=name, state="failed", started_at=now, finished_at=now)
    assert "3 runs of jobs failed" in text(ada.get("/"))
    alarms.raise_alarm(kind="job_failed", name="cleanup", detail="it raised")
    acknowledged(ada, "job_failed", "cleanup")
    # charts mark when it began
    page = re.sub(r'(?s)<td class="events">.*?</td>', "", text(ada.get("/")))
    assert "1 run of a job failed" in page and "cleanup" not in page


def test_groups_whose_alarms_are_acknowledged_take_no_place_of_others(
    queue: int, ada: Client
) -> None:
    for name in [f"a{number}" for number in range(overview_lists.MOST)]:
        rows.group(name, topics=("orders",))
        alarms.raise_alarm(kind="lag", name=f"{name}/orders", detail="much")
    ConsumerGroupTopic.objects.filter(topic__name="orders").update(lag=3)
    ConsumerGroup.objects.update(stopped=True)
    Alarm.objects.update(acknowledged_at=database_now(), acknowledged_by="ada")
    page = text(ada.get("/"))
    assert "Group billing is paused" in page and "Group a0" not in page


def test_a_queue_whose_table_is_gone_is_said_once_somebody_sends_to_it(
    queue: int, ada: Client
) -> None:
    plant(queue, "ALTER TABLE message_{q} RENAME TO moved")
    with pytest.raises(StoreCorrupt):
        failing.send(b"a")
    corruption_alarms.raise_alarms()
    page = text(ada.get("/"))
    assert 'href="/topics/orders">Alarm: queue is corrupt, orders/0: ' in page
    assert f"message_{queue}" in page and "missing or was altered" in page
    url = "/alarms/corrupt/orders/0"
    assert "The alarm is acknowledged." in text(confirm(ada, url, ada.get(url)))
    assert "Everything is in order" in text(
        ada.get("/")
    ) and "missing or was altered" in text(ada.get("/alarms"))
    plant(queue, "ALTER TABLE moved RENAME TO message_{q}")
    node_pools.evict_all()
    assert corruption_alarms.review(calm_s=0) == 1
    assert "No active alarms" in text(ada.get("/alarms"))


def test_a_stopped_group_with_unread_messages_is_said_and_no_more_than_once(
    queue: int, ada: Client
) -> None:
    ConsumerGroupTopic.objects.update(lag=3, lag_ms=3_600_000)
    groups.update(name="billing", settings={"stopped": True}, actor=ME)
    page = text(ada.get("/"))
    assert "Group billing is paused" in page and "is late" not in page


def test_where_nothing_is_unread_there_is_no_age(queue: int, ada: Client) -> None:
    assert "0 ms" not in text(ada.get("/groups/billing")) + text(ada.get("/"))


def test_a_detail_is_in_the_language_of_the_reader_and_an_old_one_stays(
    queue: int, ada: Client
) -> None:
    ConsumerGroupTopic.objects.filter(topic__kind="normal").update(
        lag=123_456, lag_ms=1_200_000, lag_at=database_now()
    )
    look()
    assert "123,456 unread messages, the oldest for 20 min" in text(ada.get("/alarms"))
    chinese = {"headers": {"accept-language": "zh-hans"}}
    said = "123,456 条未读消息，最早的已等待 20 分钟"  # noqa: RUF001
    assert said in text(ada.get("/alarms", **chinese)) and said in text(
        ada.get("/", **chinese)
    )
    Alarm.objects.update(facts=None)  # as the release before wrote it
    assert "123,456 unread messages" in text(ada.get("/alarms", **chinese))


def test_a_text_of_a_later_release_is_shown_as_it_was_stored(
    queue: int, ada: Client
) -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="of tomorrow", count=3)
    Alarm.objects.update(facts={"text": "unheard of", "values": {}})
    assert "of tomorrow (3 so far)" in text(ada.get("/alarms"))


def test_a_failure_topic_stands_below_its_topic(queue: int, ada: Client) -> None:
    page = text(ada.get("/groups/billing"))
    assert (
        page.index("/topics/orders")
        < page.index("/topics/billing_orders_fail")
        < page.index("Members</h2>")
    )
    assert "<summary>Retry topic" in page


def test_a_repair_shows_what_it_does_and_what_is_not_safe_is_not_offered(
    queue: int, ada: Client
) -> None:
    assert "Metadata and nodes are consistent" in text(ada.get("/consistency"))
    with node_pools.node_of(queue).writing() as session:
        queue_sql.create_queue(session, queue=900, node_epoch=1)
    page = text(ada.get("/consistency"))
    key = page.partition("/consistency/")[2].partition('"')[0]
    assert key.startswith("table_unknown-")
    preview = ada.get(f"/consistency/{key}")
    assert "Drops the table. It is empty" in text(preview)
    assert "Repaired: table message_900" in text(
        confirm(ada, f"/consistency/{key}", preview)
    )
    assert ada.get(f"/consistency/{key}").status_code == 404


@pytest.mark.parametrize("wrong", ["nobody", "a@b@c", "ok@x.org, two words@x.org"])
def test_alarm_addresses_must_be_addresses(queue: int, ada: Client, wrong: str) -> None:
    with pytest.raises(Invalid, match="is not an e-mail address"):
        groups.update(name="billing", settings={"alarm_emails": wrong}, actor=ME)
    answer = filled(ada, "/groups/billing/settings", alarm_emails=wrong)
    assert answer.status_code in (200, 400, 422)
    assert not Alarm.objects.exists()
    good = {
        "alarm_emails": "a@x.org; b@x.org",
        "owners": "olga",
        "department": "sales",
        "description": "r",
    }
    assert (
        groups.update(name="billing", settings=good, actor=ME).alarm_emails
        == good["alarm_emails"]
    )


def test_the_problems_of_a_group_stand_together_and_all_alarms_are_acknowledged_at_once(
    queue: int, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("lag", "no_consumer", "dead_growing"):
        name = "billing" if kind == "dead_growing" else "billing/orders"
        alarms.raise_alarm(kind=kind, name=name, detail="much")
    page = text(ada.get("/"))
    assert (
        "One problem needs attention" in page and page.count('aria-label="critical"') == 3
    )
    monkeypatch.setattr(
        outages, "silent_nodes", lambda: [node_pools.node_of(queue).info.name]
    )
    page = text(ada.get("/"))
    verdict = page.partition('role="status"')[2].partition('class="tiles main-figures"')[0]
    assert "does not answer" in verdict and "billing" not in verdict
    preview = ada.get("/acknowledge/alarms")
    assert (
        text(preview).count("billing/orders") >= 2
        and len(alarms.list_acknowledgeable(actor=ME)) == 3
    )
    chinese = text(ada.get("/acknowledge/alarms", headers={"accept-language": "zh-hans"}))
    assert "严重积压\N{FULLWIDTH COLON}billing/orders" in chinese
    assert "3 alarms are acknowledged." in text(
        confirm(ada, "/acknowledge/alarms", preview)
    )
    assert alarms.list_acknowledgeable(actor=ME) == []
    assert ada.get("/acknowledge/alarms").status_code == 404
