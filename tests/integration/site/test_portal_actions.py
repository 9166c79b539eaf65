"""What the portal's buttons do is carried out, once, and on what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Target
from messagestore.pool import node_pools
from messagestore.produce import delayed_admin
from messagestore.retries import dead_letters, redrives
from messagestore.retries.redrives import Redriver
from messagestore.tables import node_sql, queue_sql, reader_sql
from messagestore.topology import subscriptions, topics
from metadata import redrive_rows
from metadata.actors import command
from metadata.cache import snapshot
from metadata.groups import groups, subscription_rows
from metadata.jobs import reports, runs
from metadata.models import (
    AuditLog,
    ConsumerGroupTopic,
    OffsetMove,
    Redrive,
    Report,
    Topic,
    TopicProducer,
)
from metadata.topics import producers, topic_rows
from metadata.users import api_keys
from tests.support import failing, moving, tampering
from tests.support.failing import ME
from tests.support.forms import browser, carry_out, confirm, fields, filled, text
from tests.support.rows import long_ago

DEAD = "/groups/billing/dead"
Threads = Callable[..., list[Any]]


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of `orders`; `billing` reads it without retries."""
    return failing.billing(retries=0)


@pytest.fixture
def ada(queue: int) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def kill(queue: int, *bodies: bytes, error: str = "ValueError: no") -> list[str]:
    """Sends messages and lets them die; ids of the dead."""
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_heads(session, queues=[queue])[queue]
    failing.send(*bodies)
    failing.fail(failing.member(), queue, *range(head, head + len(bodies)), error=error)
    return [one.id for one in listed()]


def listed() -> list[dead_letters.DeadLetterInfo]:
    return list(dead_letters.page(group="billing", actor=ME, limit=50, after="").messages)


def redriven() -> list[bytes]:
    """The bodies that came back to the group's retry topic, once the loop has done its
    work.
    """
    mine = Redriver()
    while redrive_rows.list_running():
        mine.run_once()
    for queue in failing.failure_queues():
        moving.make_due(queue)
        while moving.mover(queue).move():
            pass
    return sorted(
        one.body for queue in failing.failure_queues() for one in moving.stored(queue)
    )


def committed() -> int:
    """Where the group stands in the queue of `orders`."""
    (move,) = offset_reset.reset(
        group="billing", topic="orders", target=Target("latest"), actor=ME, dry_run=True
    )
    return move.from_offset


@pytest.mark.one_engine
def test_one_dead_message_is_brought_back(queue: int, ada: Client) -> None:
    first, *_ = kill(queue, b"a", b"b", b"c")
    body = dead_letters.show(group="billing", message=first, actor=ME).body
    seen = filled(ada, f"{DEAD}/redrive?ids={first}")
    assert "are redriven: 1." in text(seen) and len(listed()) == 3
    assert confirm(ada, f"{DEAD}/redrive", seen).status_code == 200
    assert redriven() == [body] and len(listed()) == 2
    again = next(one for one in failing.failure_queues() if moving.stored(one))
    (retries,) = Topic.objects.filter(kind="failure").values_list("name", flat=True)
    assert "Redriven from the dead letters." in text(
        ada.get(f"/messages/{retries}/{again}-0")
    )


@pytest.mark.one_engine
def test_selected_dead_messages_are_brought_back(queue: int, ada: Client) -> None:
    first, second, _third = kill(queue, b"a", b"b", b"c")
    carry_out(ada, f"{DEAD}/redrive?ids={first}&ids={second}")
    assert len(redriven()) == 2 and len(listed()) == 1


@pytest.mark.one_engine
def test_all_of_one_kind_are_brought_back_and_no_other(queue: int, ada: Client) -> None:
    kill(queue, b"a", b"b")
    kill(queue, b"other", error="KeyError: x")
    carry_out(ada, f"{DEAD}/redrive?topic=orders&error=ValueError")
    assert redriven() == [b"a", b"b"]
    assert [one.error_class for one in listed()] == ["KeyError"]


@pytest.mark.one_engine
def test_dead_messages_are_dropped_for_good(queue: int, ada: Client) -> None:
    first, *_ = kill(queue, b"a", b"b")
    assert "Dead letters deleted: 1." in text(carry_out(ada, f"{DEAD}/drop?ids={first}"))
    assert len(listed()) == 1
    carry_out(ada, f"{DEAD}/drop?everything=on")
    assert listed() == []


@pytest.mark.one_engine
def test_a_message_tells_what_became_of_it(queue: int, ada: Client) -> None:
    (died,) = kill(queue, b"a")
    failing.change(retries=2)
    failing.send(b"b", b"c")
    who = failing.member()
    failing.fail(who, queue, 1, error="KeyError: later")
    first, second, third = (
        text(ada.get(f"/messages/orders/{queue}-{n}")) for n in range(3)
    )
    steps = ("Sent", "Stored in its queue", "billing: failed first", "billing: dead letter")
    life = first.partition('class="life"')[2]
    places = [life.index(f">{words}<") for words in steps]
    assert places == sorted(places) and f"{DEAD}/of/{died}" in first
    assert "orders/0, offset 0" in first and "By test." in first
    assert "waiting for a retry" in second and "KeyError: later" in second
    assert "not read yet" in third


@pytest.mark.one_engine
def test_a_message_names_the_clients_that_sent_under_the_name_of_its_sender(
    queue: int, ada: Client
) -> None:
    topic_id = snapshot.find_topic("orders").id
    for name, address in ((ME.name, "10.0.0.5"), ("other", "10.0.0.6")):
        producers.count_sent(
            topic_id=topic_id,
            actor=command(name),
            address=address,
            sdk="pmq-java/5.5.1",
            messages=1,
        )
    failing.send(b"a")
    producers.flush()
    page = text(ada.get(f"/messages/orders/{queue}-0"))
    assert f"By {ME.name}. It sent at that time from: 10.0.0.5 (pmq-java/5.5.1)." in page
    TopicProducer.objects.update(last_seen=long_ago(seconds=3600))
    assert f"By {ME.name}.<" in text(ada.get(f"/messages/orders/{queue}-0"))


@pytest.mark.one_engine
def test_a_delayed_message_is_taken_back(queue: int, ada: Client) -> None:
    (receipt,) = moving.delay("orders", b"later")
    page = carry_out(ada, f"/topics/orders/delayed/{receipt.message_id}")
    assert "was recalled" in text(page)
    assert delayed_admin.of_topic(topic="orders", actor=ME).count == 0


@pytest.mark.one_engine
def test_a_double_click_acts_once_and_says_what_the_first_did(
    queue: int, ada: Client
) -> None:
    kill(queue, b"a", b"b")
    seen = filled(ada, f"{DEAD}/drop?everything=on")
    assert "Dead letters deleted: 2." in text(confirm(ada, f"{DEAD}/drop", seen))
    kill(queue, b"c")
    again = text(confirm(ada, f"{DEAD}/drop", seen))
    assert "carried out once: Dead letters deleted: 2." in again
    assert len(listed()) == 1


def test_two_clicks_at_the_same_time_act_once(
    queue: int, ada: Client, in_threads: Threads
) -> None:
    kill(queue, b"a")
    seen = filled(ada, f"{DEAD}/redrive?everything=on")

    def click() -> int:
        client = Client()
        client.cookies = ada.cookies
        return int(client.post(f"{DEAD}/redrive", fields(seen)).status_code)

    assert in_threads([click] * 4) == [302] * 4
    assert Redrive.objects.count() == 1 and redriven() == [b"a"]


@pytest.mark.one_engine
def test_what_was_refused_can_be_sent_again(queue: int, ada: Client) -> None:
    kill(queue, b"a")
    seen = filled(ada, f"{DEAD}/redrive?everything=on")
    running = redrives.request(group="billing", to="group", everything=True, actor=ME)
    assert confirm(ada, f"{DEAD}/redrive", seen).status_code == 409
    redrive_rows.stop_redrive(group="billing", redrive=running.id, actor=ME)
    assert "The redrive has started" in text(confirm(ada, f"{DEAD}/redrive", seen))


@pytest.mark.one_engine
def test_a_form_without_its_number_only_shows_what_would_happen(
    queue: int, ada: Client
) -> None:
    answer = ada.post("/groups/billing/stop", {"confirmed": "yes"})
    assert "Preview of the changes" in text(answer)
    assert not groups.describe(name="billing", actor=ME).stopped


@pytest.mark.one_engine
def test_offsets_move_while_the_group_runs_and_go_back(queue: int, ada: Client) -> None:
    failing.send(b"a", b"b", b"c")
    failing.member()
    url = "/groups/billing/reset"
    seen = text(filled(ada, url, topic="orders", to="offset", offset="99"))
    assert (
        "0 messages are read again, 3 are skipped" in seen and "its nearest offset" in seen
    )
    assert "is running" in seen and committed() == 0
    page = text(carry_out(ada, url, topic="orders", to="offset", offset="99"))
    assert committed() == 3 and "undo" in page
    reset = OffsetMove.objects.get().reset
    undo = f"/groups/billing/moves/{reset}/undo"
    preview = ada.get(undo)
    assert "3 messages are read again, 0 are skipped" in text(preview) and committed() == 3
    assert "undone" in text(confirm(ada, undo, preview))
    assert committed() == 0
    assert text(ada.get("/groups/billing/moves")).count("<tr>") == 3
    verbs = AuditLog.objects.filter(kind="offset", actor_name="ada").values_list(
        "verb", flat=True
    )
    assert sorted(verbs) == ["reset", "undo"]


@pytest.mark.one_engine
def test_a_group_gets_the_offsets_of_another_after_a_preview(
    queue: int, ada: Client
) -> None:
    failing.send(b"a", b"b", b"c")
    groups.create(name="shipping", actor=ME)
    subscriptions.create(group="shipping", topic="orders", start="latest", actor=ME)
    url, typed = "/groups/billing/reset", {"topic": "orders", "to": "group"}
    refused = filled(ada, url, **typed)
    assert refused.status_code == 400 and "Name the other group." in text(refused)
    typed["source_group"] = "shipping"
    seen = text(filled(ada, url, **typed))
    assert (
        "0 messages are read again, 3 are skipped" in seen
        and "stay as they are" not in seen
    )
    assert committed() == 0
    assert "1 offsets were reset" in text(carry_out(ada, url, **typed)) and committed() == 3
    group_id = snapshot.find_group("shipping").id
    with node_pools.node_of(queue).writing() as session:
        reader_sql.delete_readers(session, group_id=group_id, queues=[queue], below=1 << 60)
    seen = text(filled(ada, url, **typed))
    assert "no offset in these queues, which stay as they are: orders/0" in seen
    assert "0 offsets were reset" in text(carry_out(ada, url, **typed)) and committed() == 3


@pytest.mark.one_engine
def test_a_group_subscribes_from_a_date_and_time(queue: int, ada: Client) -> None:
    failing.send(b"a", b"b", b"c")
    tampering.age(queue, 0, 2, seconds=7_200)
    groups.create(name="shipping", actor=ME)
    with node_pools.node_of(queue).reading() as session:
        since = datetime.fromtimestamp(node_sql.now_ms(session) // 1000 - 3_600, UTC)
    url, typed = "/groups/shipping/subscribe", {"topic": "orders", "start": "time"}
    refused = filled(ada, url, **typed)
    assert refused.status_code == 400 and "Give a date and time." in text(refused)
    typed["at"] = f"{since:%Y-%m-%dT%H:%M:%S}"
    seen = filled(ada, url, **typed)
    assert f"from what was stored at {since:%Y-%m-%d %H:%M:%S} UTC or later." in text(seen)
    assert "Group shipping reads orders." in text(confirm(ada, url, seen))
    made = subscription_rows.find_subscription(group="shipping", topic="orders", actor=ME)
    assert made.start_at_ms == int(since.timestamp()) * 1000
    (move,) = offset_reset.reset(
        group="shipping", topic="orders", target=Target("latest"), actor=ME, dry_run=True
    )
    assert (move.from_offset, move.to_offset) == (2, 3)


def two_topics() -> list[int]:
    """The queues of topic `sales`, which `billing` reads, too."""
    made = topics.create(name="sales", queues=2, actor=ME)
    subscriptions.create(group="billing", topic="sales", start="earliest", actor=ME)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def quick(client: Client, url: str, label: str) -> str:
    """The preview that a quick button of a page leads to."""
    href = re.search(rf'<a href="([^"]*)">{label}</a>', text(client.get(url)))
    assert href is not None
    return text(client.get(unescape(href[1])))


@pytest.mark.one_engine
@pytest.mark.parametrize("label", ["Earliest", "Latest", "1 hour ago"])
def test_a_quick_reset_is_of_all_topics_or_of_the_one_that_was_chosen_and_says_so(
    queue: int, ada: Client, label: str
) -> None:
    two_topics()
    url = "/groups/billing/reset"
    every = quick(ada, url, label)
    assert "orders, sales are reset." in every, every
    assert all(f">{name}</" in every for name in ("orders/0", "sales/0", "sales/1"))
    one = quick(ada, f"{url}?topic=sales", label)
    assert (
        "2 queues of sales are reset." in one
        and "orders/0" not in one.partition("Preview")[2]
    )


@pytest.mark.one_engine
def test_only_the_queues_that_are_named_are_reset(queue: int, ada: Client) -> None:
    two_topics()
    url = "/groups/billing/reset"
    seen = text(filled(ada, url, topic="", to="latest", queues="sales/1, orders/0"))
    assert "2 queues of orders, sales are reset." in seen and ">sales/0</" not in seen
    refused = filled(
        ada, url, topic="", to="latest", queues=f"sales/1 {queue} sales/7 ghost/0"
    )
    assert refused.status_code == 400
    assert (
        f"There is no queue {queue}, sales/7, ghost/0. Name queues as on the pages"
        in text(refused)
    )


@pytest.mark.one_engine
def test_queues_are_paused_by_the_names_that_pages_show(queue: int, ada: Client) -> None:
    """The form shows the id of a queue that is gone, and takes it back."""
    two_topics()
    url = "/groups/billing/of/orders"
    seen = filled(ada, url, stopped_queues="orders/0")
    assert ">orders/0<" in text(seen)
    assert "was changed" in text(confirm(ada, url, seen))
    mine = ConsumerGroupTopic.objects.filter(group__name="billing", topic__name="orders")
    assert mine.get().stopped_queues == [queue]
    assert 'value="orders/0"' in text(ada.get(url))
    mine.update(stopped_queues=[queue, 10**9])
    assert f'value="orders/0, {10**9}"' in text(ada.get(url))
    refused = text(filled(ada, url, stopped_queues="orders/7"))
    assert "There is no queue orders/7." in refused


@pytest.mark.one_engine
def test_how_messages_come_is_changed_with_a_look_before(queue: int, ada: Client) -> None:
    url = "/groups/billing/of/orders"
    typed = {
        "retries": "3",
        "retry_delays_s": "5, 60",
        "tags": "new||paid",
        "threads": "8",
        "ordered": "on",
    }
    seen = filled(ada, url, **typed)
    assert (
        "5, 60" in text(seen)
        and "Retries" in text(seen)
        and "Delivery delay, s" not in text(seen)
    )
    assert "was changed" in text(confirm(ada, url, seen))
    found = subscription_rows.find_subscription(
        group="billing", topic="orders", actor=ME
    ).delivery
    assert (found.retries, found.retry_delays_s, found.tags) == (
        3,
        (5, 60),
        ("new", "paid"),
    )
    assert (found.threads, found.ordered, found.dead_days, found.handler_timeout_ms) == (
        8,
        True,
        30,
        None,
    )
    wrong = filled(ada, url, retry_delays_s="soon", tags="a||")
    assert wrong.status_code == 400 and "whole numbers" in text(wrong)
    assert "a tag is missing" in text(filled(ada, url, tags="a||"))


@pytest.mark.one_engine
def test_limits_of_sending_are_set_and_taken_away(queue: int, ada: Client) -> None:
    carry_out(
        ada, "/topics/orders/settings", max_messages_per_s="50", max_bytes_per_s="1000"
    )
    view = topic_rows.find_topic(name="orders", actor=ME)
    assert (view.max_messages_per_s, view.max_bytes_per_s) == (50, 1000)
    carry_out(ada, "/topics/orders/settings", max_bytes_per_s="")
    assert topic_rows.find_topic(name="orders", actor=ME).max_bytes_per_s is None
    carry_out(ada, "/create/key", name="till", produce="orders", max_messages_per_s="7")
    assert api_keys.find_key(name="till", actor=ME).max_messages_per_s == 7
    carry_out(ada, "/keys/till/limits", max_messages_per_s="", max_bytes_per_s="9")
    found = api_keys.find_key(name="till", actor=ME)
    assert (found.max_messages_per_s, found.max_bytes_per_s) == (None, 9)
    assert "9 bytes a second" in text(ada.get("/keys"))


@pytest.mark.one_engine
def test_a_report_is_made_shown_and_downloaded(queue: int, ada: Client) -> None:
    failing.send(b"a", b"b")
    page = text(carry_out(ada, "/create/report", name="volume", topic="orders"))
    made = Report.objects.get()
    assert (
        "orders" in page
        and "Download as CSV" in page
        and f"/reports/{made.pk}" in text(ada.get("/reports"))
    )
    reports.save_report(
        name="odd", engine="spark", settings={}, rows=[{"who": "=1+1"}], actor=ME
    )
    answer = ada.get(f"/reports/{Report.objects.latest('id').pk}/csv")
    assert (
        answer.content == b"who\r\n'=1+1\r\n"
        and "attachment" in answer["Content-Disposition"]
    )


@pytest.mark.one_engine
def test_a_run_of_a_job_is_asked_to_end(queue: int, ada: Client) -> None:
    with pytest.raises(runs.Cancelled), runs.record_run("report_volume") as run:
        carry_out(ada, f"/runs/{run.id}/cancel")
        run.report_progress("counting", 3, 8)
        page = text(ada.get("/jobs"))
        assert (
            "cancel requested" in page and "counting: 3 of 8" in page and run.cancel_asked()
        )
        raise runs.Cancelled
    assert "cancelled" in text(ada.get("/jobs"))


@pytest.mark.one_engine
def test_two_people_who_change_different_settings_both_get_theirs(
    queue: int, ada: Client
) -> None:
    url = "/topics/orders/settings"
    opened = fields(ada.get(url))
    topic_rows.update(name="orders", settings={"department": "sales"}, actor=ME)
    seen = ada.post(url, {**opened, "retention_days": "9"})
    assert (
        seen.status_code == 409
        and "Another user saved changes" in text(seen)
        and "sales" in text(seen)
    )
    confirm(ada, url, seen)
    view = topic_rows.find_topic(name="orders", actor=ME)
    assert (view.retention_days, view.department) == (9, "sales")


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("url", "update"),
    [
        (
            "/topics/orders/settings",
            lambda given: topic_rows.update(name="orders", settings=given, actor=ME),
        ),
        (
            "/groups/billing/settings",
            lambda given: groups.update(name="billing", settings=given, actor=ME),
        ),
    ],
)
def test_a_setting_that_two_people_change_is_saved_after_both_values_were_seen(
    queue: int, ada: Client, url: str, update: Callable[[dict[str, str]], Any]
) -> None:
    seen = filled(ada, url, description="mine")
    update({"description": "theirs"})
    both = confirm(ada, url, seen)
    assert both.status_code == 409 and "mine" in text(both) and "theirs" in text(both)
    assert (
        "Your values will replace them" in text(both)
        and fields(ada.get(url))["description"].strip() == "theirs"
    )
    confirm(ada, url, both)
    assert fields(ada.get(url))["description"].strip() == "mine"


@pytest.mark.one_engine
def test_a_form_that_is_sent_after_the_session_ended_comes_back_filled_in(
    queue: int, ada: Client
) -> None:
    typed = {
        **fields(ada.get("/topics/orders/settings")),
        "retention_days": "11",
        "description": "a secret",
    }
    ada.logout()
    answer = ada.post("/topics/orders/settings", typed)
    assert answer.status_code == 302 and "secret" not in answer["Location"]
    (following,) = parse_qs(urlsplit(answer["Location"]).query)["next"]
    back = ada.post(
        "/login", {"username": "ada", "password": "enough characters", "next": following}
    )
    page = ada.get(back["Location"])
    assert fields(page)["retention_days"] == "11" and "Your session ended before" in text(
        page
    )
    assert topic_rows.find_topic(name="orders", actor=ME).retention_days == 7


@pytest.mark.one_engine
def test_passwords_never_come_back_in_an_address(queue: int) -> None:
    typed = {"name": "n9", "password": "very secret", "host": "db"}
    answer = Client().post("/create/node", typed)
    assert "secret" not in answer["Location"] and "n9" in answer["Location"]
    assert snapshot.current().nodes
