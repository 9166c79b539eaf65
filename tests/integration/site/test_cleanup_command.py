"""manage.py cleanup and the job of the same work: what they show, what they do, how they
end.
"""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from catmq_site.background.table import JOBS
from messagestore import retention
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.retention import cleaning
from messagestore.tables import queue_sql
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.groups import groups
from metadata.topics import topic_rows
from tests.support.tampering import age, plant

ME = actors.command("test")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for pulls that are not there."""
    monkeypatch.setitem(retention.clean.__kwdefaults__, "rest_s", 0.0)
    monkeypatch.setattr(cleaning, "PACE", 0)


@pytest.fixture
def queue(node: str) -> int:
    """The queue of topic `orders`: six messages, four of ten days ago, all unread by
    `billing`.
    """
    (made,) = topics.create(
        name="orders", queues=1, actor=ME, settings={"keep_unread_days": 0}
    ).queues
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    for _ in range(3):
        messages = [NewMessage(body=b"m", queue=made.queue.queue) for _ in range(2)]
        publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    age(made.queue.queue, 0, 4, seconds=10 * 86_400)
    return made.queue.queue


def cleanup(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr with the error's text) of the command."""
    out, err = StringIO(), StringIO()
    try:
        call_command("cleanup", *arguments, stdout=out, stderr=err)
    except CommandError as error:
        return error.returncode, out.getvalue(), err.getvalue() + str(error)
    return 0, out.getvalue(), err.getvalue()


def low(queue: int) -> int:
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    assert head is not None
    return head.low


@pytest.mark.one_engine
def test_a_dry_run_shows_per_queue_what_would_go_and_who_has_not_read_it(
    queue: int,
) -> None:
    code, out, _ = cleanup("--dry-run")
    cells = out.splitlines()[1].split("  ")
    assert code == 0
    assert [cell.strip() for cell in cells if cell.strip()][:7] == [
        "orders", str(queue), "main", "4 … 5", "0 … 3", "age", "4",
    ]  # fmt: skip
    assert "group billing has not read 4 of these messages" in out
    assert "1 queues: 4 messages, about " in out
    assert low(queue) == 0


@pytest.mark.one_engine
def test_without_it_the_same_is_done_and_a_second_run_finds_nothing(queue: int) -> None:
    code, out, _ = cleanup("--topic", "orders")
    assert (code, low(queue)) == (0, 4)
    assert "4 messages are no longer served" in out
    assert (
        "0 messages are no longer served; 0 partitions dropped, 0 rows deleted"
        in cleanup()[1]
    )


@pytest.mark.one_engine
def test_a_topic_that_would_lose_everything_is_told_so_before(queue: int) -> None:
    age(queue, 4, 6, seconds=10 * 86_400)
    assert "all its messages are deleted" in cleanup("--dry-run")[1]


def test_settings_that_leave_no_room_are_told(queue: int) -> None:
    topic_rows.update(name="orders", settings={"retention_bytes": 1 << 20}, actor=ME)
    if node_pools.node_of(queue).info.engine == "sqlite":
        assert cleanup("--dry-run")[0] == 0
        return
    messages = [NewMessage(body=b"x" * 900_000, queue=queue) for _ in range(4)]
    for message in messages:
        publish(topic="orders", messages=[message], batch_id=None, actor=ME)
    plant(queue, "ANALYZE TABLE message_{q}")
    assert "that stays" in cleanup("--dry-run")[1]


@pytest.mark.one_engine
def test_a_queue_that_cannot_be_cleaned_ends_with_3_and_the_reason(queue: int) -> None:
    plant(queue, "DROP TABLE message_{q}")
    code, out, error = cleanup()
    assert (code, f"message_{queue}" in out, "1 of 1 queues" in error) == (3, True, True)


@pytest.mark.one_engine
def test_an_unknown_topic_is_refused(queue: int) -> None:
    assert cleanup("--topic", "order")[0] == 1


def test_long_work_says_how_far_it_is(queue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catmq_site.management.base.PROGRESS_EVERY_S", 0.0)
    plant(queue, *([] if node_pools.node_of(queue).info.engine == "sqlite" else [
        "ALTER TABLE message_{q} REMOVE PARTITIONING"
    ]))  # fmt: skip
    monkeypatch.setattr(cleaning, "CHUNK", 2)
    assert f"orders queue {queue}: rows 2 of 4" in cleanup()[2]


@pytest.mark.one_engine
def test_the_schedule_does_it_and_counts_queues(queue: int) -> None:
    assert JOBS["expire_messages"].run() == 1
    assert (JOBS["expire_messages"].run(), low(queue)) == (0, 4)


@pytest.mark.one_engine
def test_the_schedule_stops_in_time_and_goes_on_with_the_next_run(queue: int) -> None:
    assert retention.clean(actor=ME, pass_s=1e-9) == []
    assert low(queue) == 0
    assert JOBS["expire_messages"].run() == 1
