"""manage.py import_pmq on MariaDB with the tables of PMQ: what is made, left out, repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from messagestore.topology import topics
from metadata.cache import snapshot
from metadata.db.clock import before, database_now
from metadata.definitions.exports import export
from metadata.groups import groups, subscription_rows
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Topic
from metadata.topics import topic_rows
from metadata.users import api_keys
from tests.support.mariadb import MariaDB
from tests.support.pmq_tables import TABLES, Pmq
from tests.support.rows import ME

pytestmark = [pytest.mark.usefixtures("node"), pytest.mark.one_engine]


@pytest.fixture
def pmq(mariadb: MariaDB) -> Iterator[Pmq]:
    with mariadb.schema() as schema:
        yield Pmq(mariadb, schema)


@pytest.fixture
def url(pmq: Pmq) -> Iterator[str]:
    """The URL of an account that can only read."""
    with pmq.server.reader(pmq.schema) as (name, password):
        yield f"mysql://{name}:{password}@127.0.0.1:{pmq.server.port}/{pmq.schema}"


@pytest.fixture
def shop(pmq: Pmq) -> Pmq:
    """A usual installation: two topics, a group that shares, one that broadcasts."""
    owned = {
        "owner_ids": "zhangsan,lisi",
        "owner_names": "张三,李四",
        "dpt_name": "支付",
        "remark": "订单",
    }
    pmq.topic(
        "shop.orders", queues=3, closed=1, save_day_num=3, emails="a@x.org;b@x.org", **owned
    )
    pmq.topic(
        "shop.refunds",
        queues=1,
        token="6f1c-secret",
        consumer_flag=0,
        consumer_group_names="billing",
    )
    settings = {
        "retry_count": 5,
        "thread_size": 4,
        "pull_batch_size": 60,
        "consumer_batch_size": 10,
    }
    more = {
        "time_out": 20,
        "delay_process_time": 30,
        "tag": "new,paid",
        "max_lag": 500,
        "stop_flag": 1,
    }
    limits = {
        "ip_white_list": "10.0.0.5,10.0.1.0/24,web*",
        "consumer_quality": 2,
        "alarm_emails": "ops@x.org",
    }
    reads = {
        "shop.orders": {**settings, **more},
        "shop.refunds": {"consumer_name": "10.0.0.5|42|7|8080"},
    }
    pmq.group("billing", reads, **limits, **owned)
    pmq.group("caches", {"shop.refunds": {}}, mode=2, alarm_flag=0)
    for number in range(3):
        pmq.group(f"caches_10.0.0.{number}_42", mode=2, origin_name="caches")
    return pmq


def run(url: str, *options: str) -> str:
    out = StringIO()
    call_command("import_pmq", f"--from={url}", *options, stdout=out)
    return "\n".join(" ".join(line.split()) for line in out.getvalue().splitlines())


def made() -> tuple[int, int, int]:
    ready = Topic.objects.filter(kind="normal", state="ready").count()
    return (
        ready,
        ConsumerGroup.objects.count(),
        ConsumerGroupTopic.objects.filter(topic__kind="normal").count(),
    )


def test_the_report_says_what_would_be_made_and_nothing_is(shop: Pmq, url: str) -> None:
    said = run(url)
    assert made() == (0, 0, 0)
    lines = [line.split() for line in said.splitlines()]
    assert ["topics", "2", "0", "0", "3"] in lines and [
        "groups",
        "2",
        "0",
        "0",
        "0",
    ] in lines
    assert ["subscriptions", "3", "0", "0", "0"] in lines
    assert ["topic", "shop.orders", "3", "queues"] in lines
    assert ["billing", "shop.orders", "4", "4006", "0"] in lines
    assert ["billing", "shop.refunds", "1", "1000", "1"] in lines
    for part in (
        "billing_shop.orders_fail is a retry topic",
        "has 4 queues there, 3 of them open for sends, and gets 3",
        "owners without an account here: zhangsan, lisi",
        "shop.refunds would be taken over, if the topic has none here",
        "only these groups may subscribe there: billing",
        "has 3 copies for its consumers there",
        "ip_white_list names what is no address, left out: web*",
        "is delayed by 30 s",
        "is stopped there in 4 of 4 queues",
        "has lag thresholds 500 to 1000 there",
        "settings of retries are not taken over, those of the topic hold: retry_count ",
        "Offsets are not taken over",
        "Nothing was written",
    ):
        assert part in said, part
    assert "secret" not in said and "caches_10" not in said


def test_apply_makes_it_and_a_second_run_makes_nothing_twice(shop: Pmq, url: str) -> None:
    assert "Done." in run(url, "--apply")
    assert made() == (2, 2, 3)
    orders = topic_rows.find_topic(name="shop.orders", actor=ME)
    assert (len(orders.queues), orders.retention_days, orders.owners) == (
        3,
        3,
        "zhangsan, lisi",
    )
    assert (orders.department, orders.description, orders.alarm_emails) == (
        "支付",
        "订单",
        "a@x.org, b@x.org",
    )
    billing = groups.describe(name="billing", actor=ME)
    assert (billing.mode, billing.max_active_members, billing.alarm_lag) == (
        "clustering",
        2,
        500,
    )
    assert billing.allow_addresses == "10.0.0.5, 10.0.1.0/24"
    caches = groups.describe(name="caches", actor=ME)
    assert (caches.mode, caches.alarm_lag) == ("broadcasting", None)
    found = subscription_rows.find_subscription(
        group="billing", topic="shop.orders", actor=ME
    )
    delivery = found.delivery
    assert (found.start, delivery.tags, delivery.retries, delivery.threads) == (
        "earliest",
        ("new", "paid"),
        5,
        4,
    )
    assert (delivery.max_poll_records, delivery.handler_batch, delivery.delay_s) == (
        60,
        10,
        30,
    )
    assert delivery.handler_timeout_ms == 20_000
    snapshot.refresh()
    (token,) = snapshot.find_topic("shop.refunds").send_tokens
    assert token == api_keys.digest("6f1c-secret")
    assert not snapshot.find_topic("shop.orders").send_tokens
    before_it = export(actor=ME)
    again = run(url, "--apply")
    assert ["topics", "0", "2", "0", "3"] in [line.split() for line in again.splitlines()]
    assert (export(actor=ME), made()) == (before_it, (2, 2, 3))
    assert "shop.refunds has its own here, which stay" in again
    snapshot.refresh()
    assert snapshot.find_topic("shop.refunds").send_tokens == {token}


def test_what_was_changed_here_since_stays_and_is_reported(shop: Pmq, url: str) -> None:
    run(url, "--apply")
    topic_rows.update(name="shop.orders", settings={"retention_days": 9}, actor=ME)
    shop.topic("shop.new", queues=1)
    said = run(url, "--apply")
    assert "retention_days 9 here, 3 there" in said
    assert topic_rows.find_topic(name="shop.orders", actor=ME).retention_days == 9
    assert topic_rows.find_topic(name="shop.new", actor=ME).state == "ready"


def test_what_cannot_be_taken_over_is_left_out_with_its_reason(pmq: Pmq, url: str) -> None:
    pmq.topic("订单")
    pmq.topic("odd_fail")
    pmq.topic("gone", is_active=1)
    pmq.topic("wide", queues=300, save_day_num=0, emails="nobody, ops@x.org", normal_flag=0)
    pmq.topic("closed", queues=0, closed=2)
    pmq.group(
        "good",
        {
            "订单": {},
            "wide": {"tag": "a && b"},
            "closed": {"retry_count": 5_000, "tag": ",a,"},
        },
    )
    pmq.group("good_fat1", {"closed": {}}, origin_name="good", sub_env="fat1")
    pmq.group("pushed", {"closed": {}}, mode=3)
    pmq.group("no list", {"closed": {}})
    said = run(url, "--apply")
    for part in (
        "订单", "names ending in _fail are reserved", "gets 256", "gets 1", "save_day_num is 0",
        "alarm addresses that are not allowed here: nobody", "has nodes of its own there",
        "good/订单", "its topic is left out", "its tag filter 'a && b' cannot be meant",
        "copy of group good for environment fat1", "is of mode 3 (proxy)", "retry_count is 5000",
    ):  # fmt: skip
        assert part in said, part
    document = export(actor=ME)
    assert [(one["name"], one["queues"]) for one in document["topics"]] == [
        ("closed", 1),
        ("wide", 256),
    ]
    assert [one["name"] for one in document["groups"]] == ["good"]
    (subscription,) = document["subscriptions"]
    assert (subscription["topic"], subscription["tags"], subscription["retries"]) == (
        "closed",
        "a",
        1_000,
    )


def test_a_name_that_is_taken_here_is_left_out_with_what_needs_it(
    shop: Pmq, url: str
) -> None:
    topics.create(name="Shop.Orders", queues=1, actor=ME)
    said = run(url, "--apply")
    assert "is spelled Shop.Orders here" in said and "its topic is left out" in said
    assert made() == (2, 2, 2)


class Killed(BaseException):
    """The end of the process."""


def test_a_run_that_was_killed_is_repeated(
    shop: Pmq, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(queues: Any, *, topic: str) -> None:
        if topic == "shop.refunds":
            raise Killed
        real(queues, topic=topic)

    real = topics.make_tables
    with monkeypatch.context() as patch:
        patch.setattr(topics, "make_tables", dies)
        with pytest.raises(Killed):
            run(url, "--apply")
    assert "shop.refunds is being made" in run(url)
    with pytest.raises(CommandError, match="repeat this in a minute") as caught:
        run(url, "--apply")
    assert caught.value.returncode == 3
    Topic.objects.update(created_at=before(database_now(), seconds=61))
    run(url, "--apply")
    assert made() == (2, 2, 3)


def test_the_document_is_written_for_those_who_edit_it(
    shop: Pmq, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "pmq.json"
    run(url, f"--document={path}")
    document = json.loads(path.read_text())
    assert [one["name"] for one in document["topics"]] == ["shop.orders", "shop.refunds"]
    assert document["version"] == 1 and made() == (0, 0, 0)


def test_an_older_database_without_some_columns_is_read(shop: Pmq, url: str) -> None:
    shop.execute(
        "ALTER TABLE consumer_group DROP COLUMN consumer_quality, DROP COLUMN sub_env"
    )
    shop.execute(
        "ALTER TABLE consumer_group_topic DROP COLUMN time_out, DROP COLUMN is_active"
    )
    run(url, "--apply")
    assert made() == (2, 2, 3)
    assert groups.describe(name="billing", actor=ME).max_active_members is None


def refused(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        call_command("import_pmq", *arguments, stdout=StringIO())
    return caught.value


def test_another_database_is_refused_by_what_it_lacks(pmq: Pmq, url: str) -> None:
    pmq.execute("ALTER TABLE queue_offset DROP COLUMN `offset`")
    assert "table queue_offset of database" in str(refused(f"--from={url}"))
    for table in TABLES:
        pmq.execute(f"DROP TABLE `{table}`")
    assert "has no table topic: give the URL of the metadata database" in str(
        refused(f"--from={url}")
    )


def test_a_url_that_is_wrong_or_missing_or_not_answered_is_named_without_its_password(
    pmq: Pmq, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CATMQ_PMQ_URL", raising=False)
    assert "give it, or set CATMQ_PMQ_URL" in str(refused())
    assert "must look like mysql://" in str(refused("--from=postgres://h/db"))
    away = refused("--from=mysql://u:secret@127.0.0.1:1/db")
    assert away.returncode == 3 and "127.0.0.1:1/db does not answer" in str(away)
    denied = refused(
        f"--from=mysql://nobody:secret@127.0.0.1:{pmq.server.port}/{pmq.schema}"
    )
    assert denied.returncode == 1 and "Access denied" in str(denied)
    assert "secret" not in f"{away} {denied}"
    monkeypatch.setenv("CATMQ_PMQ_URL", url)
    call_command("import_pmq", stdout=StringIO())
