"""SELECT statements that people run: those of `catmq topic sql`, and those of the page
Query with SQL.
"""

from __future__ import annotations

import re
from typing import cast

import pytest
from django.db import connection
from msgspec import to_builtins

from catmq_client.admin.shapes import ReadPlan
from catmq_client.cli.manage import topic_sql
from catmq_client.errors import OptionError
from messagestore.engine.messages import NewMessage
from messagestore.inspect import read_plans
from messagestore.produce.publish import publish
from messagestore.topology import subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.groups import groups
from tests.support.environment import ENGINE, ROOT
from tests.support.tampering import look, raise_low

ACTOR = command("test")
PAGE = ROOT / "docs/how-to/query-with-sql.md"


@pytest.fixture
def queues(node: str) -> list[int]:
    """Two queues of the topic `orders` with messages 0 to 4, keys k0 to k4 in each."""
    made = topics.create(name="orders", queues=2, actor=ACTOR)
    snapshot.refresh()
    ids = [one.queue.queue for one in made.queues]
    for queue in ids:
        sent = [
            NewMessage(body=b"body %d of it's own" % n, queue=queue, key=f"it's {n}")
            for n in range(5)
        ]
        publish(topic="orders", messages=sent, batch_id=None, actor=ACTOR)
    return ids


def plan() -> ReadPlan:
    found = read_plans.read_plan(topic="orders", actor=ACTOR)
    return cast(ReadPlan, to_builtins(found))


def test_the_newest_messages_of_a_topic_are_selected_from_all_its_queues(
    queues: list[int],
) -> None:
    (statement,) = topic_sql.statements(plan(), last=3)
    rows = look(queues[0], statement)
    assert len(rows) == 3 and {row[0] for row in rows} <= set(queues)
    assert {row[1] for row in rows} <= {2, 3, 4}, "the newest of each queue"
    assert all(row[6] == f"body {row[1]} of it's own" for row in rows)


def test_one_key_one_queue_and_only_what_retention_left(queues: list[int]) -> None:
    raise_low(queues[1], 3)
    (statement,) = topic_sql.statements(plan(), last=10, key="it's 4")
    assert sorted(row[:2] for row in look(queues[0], statement)) == [
        (queue, 4) for queue in queues
    ]
    (statement,) = topic_sql.statements(plan(), last=10, queues=[queues[1]])
    assert sorted(row[:2] for row in look(queues[0], statement)) == [
        (queues[1], 3),
        (queues[1], 4),
    ]


def test_what_cannot_be_a_key_or_is_no_queue_is_refused(queues: list[int]) -> None:
    with pytest.raises(OptionError, match="no backslash"):
        topic_sql.statements(plan(), last=10, key="\\' OR 1=1 --")
    with pytest.raises(
        OptionError, match=f"999 is not a queue of topic orders; its queues are {queues[0]}"
    ):
        topic_sql.statements(plan(), last=10, queues=[999])


@pytest.mark.skipif(ENGINE != "mysql", reason="the page is for MySQL and MariaDB")
def test_the_statements_of_the_page_run_and_find_what_they_say(queues: list[int]) -> None:
    groups.create(name="readers", actor=ACTOR)
    subscriptions.create(group="readers", topic="orders", start="earliest", actor=ACTOR)
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = {}
    for block in blocks:
        statement = block.replace("message_1", f"message_{queues[0]}").replace(
            "= 1)", f"= {queues[0]})"
        )
        if "metadata_" in statement:
            with connection.cursor() as cursor:
                cursor.execute(statement.rstrip().rstrip(";"))
                rows = list(cursor.fetchall())
        else:
            rows = look(queues[0], statement)
        found[re.findall(r"FROM (\S+)", block)[-1]] = rows
    assert [row[2] for row in found["metadata_queue"]] == queues
    assert [int(row[1]) for row in found["queue_head"]] == [5], "messages of this minute"
    assert {row[2]: row[4] for row in found["reader"]} == dict.fromkeys(queues, 5)
    assert {row[0] for row in found["information_schema.tables"]} == {
        f"message_{one}" for one in queues
    }
    assert found["dead_message"] == []


@pytest.mark.skipif(ENGINE != "mysql", reason="SQLite has no comments of tables")
def test_new_tables_say_what_they_are(queues: list[int]) -> None:
    asked = (
        "SELECT table_name, table_comment FROM information_schema.tables WHERE "
        "table_schema = DATABASE()"
    )
    told = dict(look(queues[0], asked))
    assert [told[f"message_{queue}"] for queue in queues] == [
        "topic orders, queue number 0",
        "topic orders, queue number 1",
    ]
    silent = {name for name, text in told.items() if not text}
    assert silent <= {"message_0"}, "the table that examinations write to"
