"""The key index: changes while a topic is in use, and searches by it."""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from catmq_site.background import key_indexes as key_index_job
from catmq_site.jobs.tasks import run_here
from messagestore.engine import db_errors
from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.inspect import search
from messagestore.inspect.search import SearchedBy, SearchResult, TimeRange
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, partition_sql, queue_sql
from messagestore.topology import key_indexes, queues, topics
from metadata.actors import Actor, command, job
from metadata.cache import snapshot
from metadata.errors import Forbidden, NodeUnavailable, NotFound
from metadata.jobs import runs
from metadata.models import AuditLog, JobRun
from metadata.rules.rights import Right
from metadata.topics import key_index_rows, topic_rows
from tests.support.killing import killed_step_by_step
from tests.support.rows import long_ago
from tests.support.tampering import age, plant
from tests.support.waiting import until

ACTOR = command("test")


@pytest.fixture(autouse=True)
def whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page end early because the machine is slow."""
    monkeypatch.setattr(search, "MATCH_S", 60.0)


def make_topic(*, queues: int = 2, key_index: bool = True) -> list[int]:
    """Create the topic `orders` and return its queues."""
    settings = {"key_index": key_index}
    made = topics.create(name="orders", queues=queues, settings=settings, actor=ACTOR)
    snapshot.refresh()
    return [bounds.queue.queue for bounds in made.queues]


def send(queue: int, *keys: str | None, tag: str | None = None) -> None:
    messages = [NewMessage(body=b"m", queue=queue, key=key, tag=tag) for key in keys]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def set_key_index(*, on: bool) -> None:
    topic_rows.update(name="orders", settings={"key_index": on}, actor=ACTOR)
    snapshot.refresh()


def indexed() -> list[bool]:
    """Return which queues of `orders` have an index, after a check that the states agree with
    the tables.
    """
    snapshot.refresh()
    states = []
    for queue in key_indexes.describe(topic="orders", actor=ACTOR).queues:
        with node_pools.node_of(queue.queue).reading() as session:
            states.append(queue_sql.has_key_index(session, queue=queue.queue))
        expected = "ready" if states[-1] else "none"
        assert queue.key_index == expected, queue
        assert snapshot.find_queue(queue.queue).key_indexed == states[-1]
    return states


def look(key: str, **conditions: object) -> SearchResult:
    wanted = MessageSearch(key=key, tag=conditions.pop("tag", None))  # type: ignore[arg-type]
    times = conditions.pop("times", TimeRange())
    return search.search_messages(
        topic="orders", wanted=wanted, times=times, actor=ACTOR, **conditions
    )  # type: ignore[arg-type]


def places(result: SearchResult) -> set[tuple[int, int]]:
    return {(message.queue, message.offset) for message in result.messages}


def run(*arguments: str) -> tuple[int, str]:
    """Run manage.py key_index. Return its exit code and its output."""
    out = StringIO()
    try:
        call_command("key_index", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


def test_queues_of_a_new_topic_have_the_index_and_so_have_added_ones(node: str) -> None:
    make_topic()
    queues.expand(topic="orders", queues=1, actor=ACTOR)

    assert indexed() == [True, True, True]
    assert key_indexes.build(actor=ACTOR) == []


def test_an_index_is_built_and_dropped_as_the_setting_says(node: str) -> None:
    first, second = make_topic(key_index=False)
    send(first, "a", "b")
    send(second, "b", None)
    assert indexed() == [False, False]
    assert (look("b").by, places(look("b"))) == (
        SearchedBy.RANGE,
        {(first, 1), (second, 0)},
    )

    set_key_index(on=True)
    assert key_indexes.count_pending() == 2
    changes = key_indexes.build(actor=ACTOR)

    assert [(change.queue, change.problem) for change in changes] == [
        (first, ""),
        (second, ""),
    ]
    assert (indexed(), key_indexes.count_pending()) == ([True, True], 0)
    assert (look("b").by, places(look("b"))) == (
        SearchedBy.INDEX,
        {(first, 1), (second, 0)},
    )

    set_key_index(on=False)
    key_indexes.build(actor=ACTOR)

    assert indexed() == [False, False]
    assert (look("b").by, places(look("b"))) == (
        SearchedBy.RANGE,
        {(first, 1), (second, 0)},
    )


def test_a_queue_without_the_index_is_read_beside_those_that_have_it(node: str) -> None:
    first, second = make_topic()
    send(first, "a")
    send(second, "a")
    drop_index(second)
    key_index_rows.begin_change(queue=second)
    key_index_rows.end_change(queue=second, indexed=False)
    snapshot.refresh()

    assert (look("a").by, places(look("a"))) == (SearchedBy.BOTH, {(first, 0), (second, 0)})


def test_an_index_that_is_missing_although_it_is_ready_is_not_missed(
    node: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_topic()
    send(first, "a")
    send(second, "a")
    assert look("a").by == SearchedBy.INDEX
    for queue in (first, second):
        drop_index(queue)

    assert places(look("a")) == {(first, 0), (second, 0)}
    assert look("a").by == SearchedBy.RANGE
    assert f"The key index of queue {first} cannot be used" in caplog.text
    assert "manage.py key_index --check" in caplog.text


def test_a_missing_index_does_not_let_the_queues_of_its_round_trip_be_read(
    node: str,
) -> None:
    ids = make_topic(queues=4)
    for queue in ids:
        send(queue, "a", "b")
    mapped = snapshot.find_topic("orders").queue_for("a")
    damaged = next(queue for queue in reversed(ids) if queue != mapped)
    drop_index(damaged)

    result = look("a")

    assert places(result) == {(queue, 0) for queue in ids}
    assert (result.by, result.scanned) == (SearchedBy.BOTH, 3 + 2)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_change_that_was_interrupted_is_not_relied_on_and_ends_with_the_next_run(
    node: str, wanted: bool
) -> None:
    (queue,) = make_topic(queues=1, key_index=not wanted)
    send(queue, "a")
    set_key_index(on=wanted)
    for is_altered in (False, True):
        assert key_index_rows.begin_change(queue=queue) == (wanted, is_altered)
        snapshot.refresh()
        if is_altered:
            with node_pools.node_of(queue).maintaining() as session:
                act = queue_sql.add_key_index if wanted else queue_sql.drop_key_index
                act(session, queue=queue)
        assert (look("a").by, places(look("a"))) == (SearchedBy.RANGE, {(queue, 0)})
        assert key_indexes.count_pending() == 1

    assert [c.problem for c in key_indexes.build(actor=ACTOR)] == [""]
    assert (indexed(), key_indexes.count_pending()) == ([wanted], 0)


def test_a_setting_that_was_changed_meanwhile_decides(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(queues=1, key_index=False)
    set_key_index(on=True)
    begin = key_index_rows.begin_change

    def change_setting_before(*, queue: int) -> object:
        topic_rows.update(name="orders", settings={"key_index": False}, actor=ACTOR)
        return begin(queue=queue)

    monkeypatch.setattr(key_index_rows, "begin_change", change_setting_before)
    key_indexes.build(actor=ACTOR)

    assert indexed() == [False]


def drop_index(queue: int) -> None:
    with node_pools.node_of(queue).maintaining() as session:
        queue_sql.drop_key_index(session, queue=queue)


KEYS = (
    "a",
    "a ",
    "A",
    "á",
    "a'b",
    'a"b',
    "a\\b",
    "a;b",
    "%",
    "a_",
    "😀",
    "k" * 200,
    "a\nb",
)


@pytest.mark.parametrize("key_index", [True, False])
def test_keys_are_compared_byte_by_byte(node: str, key_index: bool) -> None:
    (queue,) = make_topic(queues=1, key_index=key_index)
    send(queue, *KEYS)

    for offset, key in enumerate(KEYS):
        assert places(look(key)) == {(queue, offset)}, key
    for missing in ("a  ", "a'", "aB", "k" * 199):
        assert places(look(missing)) == set(), missing


def test_a_tag_with_a_trailing_blank_is_another_tag(node: str) -> None:
    (queue,) = make_topic(queues=1)
    send(queue, "a", tag="t")
    send(queue, "a", tag="t ")

    assert places(look("a", tag="t")) == {(queue, 0)}
    assert places(look("a", tag="t ")) == {(queue, 1)}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_no_message_of_a_key_is_left_out_or_found_twice(
    node: str, monkeypatch: pytest.MonkeyPatch, limit: int, at_once: int
) -> None:
    monkeypatch.setattr(search, "OFFSETS_AT_ONCE", at_once)
    monkeypatch.setattr(search, "ROWS_AT_ONCE", 2)
    ids = make_topic(queues=4)
    for queue in ids:
        send(queue, "a", "b", "a", None, "a")
    places_found: list[tuple[int, int]] = []
    after: str | None = None
    for _ in range(40):
        page = look("a", limit=limit, after=after)
        assert len(page.messages) <= limit
        places_found += [(message.queue, message.offset) for message in page.messages]
        after = page.next
        if after is None:
            break

    assert sorted(places_found) == [
        (queue, offset) for queue in ids for offset in (0, 2, 4)
    ]
    mapped = snapshot.find_topic("orders").queue_for("a")
    assert places_found[0] == (mapped, 0), "the queue of the key comes first"


def test_a_page_with_a_match_ends_early_and_the_next_searches_the_other_queues(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_topic(queues=3)
    mapped = snapshot.find_topic("orders").queue_for("a")
    for queue in ids:
        send(queue, "a")
    monkeypatch.setattr(search, "MATCH_S", -1.0)
    monkeypatch.setattr(search, "QUEUES_AT_ONCE", 1)

    page = look("a")
    pages = [places(page)]
    while page.next is not None:
        page = look("a", after=page.next)
        pages.append(places(page))

    others = [queue for queue in ids if queue != mapped]
    assert pages == [{(mapped, 0)}, *({(queue, 0)} for queue in others)]


def test_a_key_in_the_queue_of_an_earlier_layout_is_found(node: str) -> None:
    (old,) = make_topic(queues=1)
    publish(
        topic="orders",
        messages=[NewMessage(body=b"m", key=f"k{n}") for n in range(20)],
        batch_id=None,
        actor=ACTOR,
    )
    queues.expand(topic="orders", queues=3, actor=ACTOR)
    snapshot.refresh()
    info = snapshot.find_topic("orders")
    moved = next(n for n in range(20) if info.queue_for(f"k{n}") != old)

    assert places(look(f"k{moved}")) == {(old, moved)}
    assert look(f"k{moved}").by == SearchedBy.INDEX


@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_time_range_bounds_what_a_key_finds(
    node: str, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(search, "OFFSETS_AT_ONCE", at_once)
    (queue,) = make_topic(queues=1)
    send(queue, "a", "b", "a")
    send(queue, "a", "b")
    age(queue, 0, 3, seconds=3600)
    with node_pools.node_of(queue).reading() as session:
        late_ms = message_sql.read_stored_at_ms(session, queue=queue, offset=3)

    assert late_ms is not None
    assert places(look("a", times=TimeRange(from_ms=late_ms))) == {(queue, 3)}
    assert places(look("a", times=TimeRange(to_ms=late_ms))) == {(queue, 0), (queue, 2)}


def test_what_retention_took_is_not_found(node: str) -> None:
    (queue,) = make_topic(queues=1)
    send(queue, "a", "a")
    with node_pools.node_of(queue).reading() as session:
        partition_sql.raise_low(session, queue=queue, low=1)

    assert places(look("a")) == {(queue, 1)}


def test_sends_do_not_fail_while_the_index_is_built_and_dropped(node: str) -> None:
    ids = make_topic(key_index=False)
    stop, failures, sent = threading.Event(), [], [0]

    def write(queue: int) -> None:
        while not stop.is_set():
            try:
                send(queue, *(f"{queue}-{sent[0]}-{n}" for n in range(20)))
                sent[0] += 20
            except Exception as error:  # noqa: BLE001 - any failure fails the test
                failures.append(error)

    writers = [threading.Thread(target=write, args=(queue,)) for queue in ids]
    for writer in writers:
        writer.start()
    try:
        for on in (True, False, True):
            set_key_index(on=on)
            before = sent[0]
            problems = [change.problem for change in key_indexes.build(actor=ACTOR)]
            assert problems == ["", ""]
            until(lambda before=before: sent[0] > before + 100, limit_s=60)  # type: ignore[misc]
    finally:
        stop.set()
        for writer in writers:
            writer.join()

    assert failures == []
    assert indexed() == [True, True]


def test_a_run_that_is_killed_at_any_statement_is_continued(node: str) -> None:
    make_topic(key_index=False)
    set_key_index(on=True)
    inherited: list[object] = []

    def build() -> None:
        # The child needs a connection of its own to metadata as well. The parent's is kept,
        # because the end of it would end the parent's session.
        inherited.append(connection.connection)
        connection.connection = None
        changes = key_indexes.build(actor=job("test"))
        assert [change.problem for change in changes if change.problem] == []

    steps = killed_step_by_step(build)

    assert steps > 2
    until(lambda: indexed() == [True, True], limit_s=30)
    assert key_indexes.build(actor=ACTOR) == []


def test_another_run_that_holds_the_table_is_waited_for(node: str) -> None:
    (queue,) = make_topic(queues=1, key_index=False)
    set_key_index(on=True)
    where = node_pools.node_of(queue)
    if where.info.engine == "sqlite":
        pytest.skip("SQLite builds an index in one transaction of its own")
    with where.maintaining() as other:
        assert partition_sql.take_table_lock(other, table=f"message_{queue}", seconds=1)
        (change,) = key_indexes.build(actor=ACTOR)

    assert "locked by another session" in change.problem
    assert [c.problem for c in key_indexes.build(actor=ACTOR)] == [""]


def test_an_open_transaction_does_not_let_senders_wait_for_the_build(node: str) -> None:
    (queue,) = make_topic(queues=1, key_index=False)
    where = node_pools.node_of(queue)
    if where.info.engine == "sqlite":
        pytest.skip("SQLite has one writer per file")
    set_key_index(on=True)
    send(queue, "a")
    with where.maintaining() as other:
        # It holds the table's metadata lock, which the ALTER needs at its begin.
        plant_open_transaction(other, queue)
        (change,) = key_indexes.build(actor=ACTOR)
        send(queue, "b")

    assert f"message_{queue} cannot be changed now" in change.problem
    assert [c.problem for c in key_indexes.build(actor=ACTOR)] == [""]
    assert places(look("b")) == {(queue, 1)}


def plant_open_transaction(session: object, queue: int) -> None:
    text = f"START TRANSACTION; SELECT COUNT(*) FROM message_{queue}"
    session.send(text.encode(), statements=2, ends_transaction=False)  # type: ignore[attr-defined]


def test_a_large_queue_on_sqlite_is_indexed_on_request_only(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = make_topic(queues=1, key_index=False)
    if node_pools.node_of(queue).info.engine != "sqlite":
        pytest.skip("of SQLite")
    monkeypatch.setattr(key_indexes, "MAX_SQLITE_MESSAGES", 1)
    send(queue, "a", "b")
    set_key_index(on=True)

    assert key_indexes.count_pending() == 0
    code, out = run()
    assert (code, indexed()) == (3, [False])
    assert f"Queue {queue} has 2 messages, and all writes to its file would wait" in out
    code, out = run("--topic", "orders", "--blocking")
    assert (code, indexed()) == (0, [True])


def test_a_galera_node_is_altered_on_request_only(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No Galera server is at hand: the rule for its variables has a doctest, and here the node
    # counts as one.
    make_topic(queues=1, key_index=False)
    set_key_index(on=True)
    monkeypatch.setattr(queue_sql, "is_galera", lambda session: True)

    code, out = run()

    assert (code, indexed(), key_indexes.count_pending()) == (3, [False], 0)
    assert "Node main is part of a Galera cluster" in out
    assert "--blocking" in out
    assert (run("--blocking")[0], indexed()) == (0, [True])


def test_the_command_shows_what_it_would_do(node: str) -> None:
    first, second = make_topic(key_index=False)
    set_key_index(on=True)

    code, out = run("--dry-run")

    assert code == 0
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["orders", str(first), "main", "build"],
        ["orders", str(second), "main", "build"],
    ]
    assert indexed() == [False, False]


def test_a_build_needs_manage_and_is_audited(node: str) -> None:
    (queue,) = make_topic(queues=1, key_index=False)
    set_key_index(on=True)
    reader = Actor(kind="key", name="reader", rights={Right.BROWSE: ("orders",)})
    stranger = Actor(kind="key", name="stranger", rights={Right.BROWSE: ("other",)})

    with pytest.raises(Forbidden):
        key_indexes.build(topic="orders", actor=reader)
    with pytest.raises((Forbidden, NotFound)):
        key_indexes.describe(topic="orders", actor=stranger)
    assert key_indexes.describe(topic="orders", actor=reader).ready_count == 0

    key_indexes.build(topic="orders", actor=ACTOR)

    entry = AuditLog.objects.filter(verb="index").get()
    assert (entry.name, entry.after) == (
        "orders",
        {"key_index": True, "queues": str(queue)},
    )


def test_a_node_that_does_not_answer_is_named_and_the_others_are_built(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(key_index=False)
    set_key_index(on=True)
    away = node_pools.node_of(snapshot.find_topic("orders").queues[0])

    def refuse(*_: object, **__: object) -> None:
        raise NodeUnavailable("Node main is away.")

    set_key_index(on=True)
    monkeypatch.setattr(away, "reading", refuse)

    assert key_indexes.count_pending() == 0
    problems = [change.problem for change in key_indexes.build(actor=ACTOR)]
    assert problems == ["Node main is away."] * 2


def test_a_restored_table_without_the_index_gets_it_again(node: str) -> None:
    (queue,) = make_topic(queues=1)
    drop_index(queue)

    assert run()[1].splitlines() == ["Queues altered: 0."]
    code, out = run("--check")
    assert (code, indexed()) == (0, [True])
    assert f"orders  {queue}" in out


def test_an_index_made_by_hand_is_taken_over(node: str) -> None:
    (queue,) = make_topic(queues=1, key_index=False)
    engine = node_pools.node_of(queue).info.engine
    name = f"message_{queue}_key" if engine == "sqlite" else "message_key"
    plant(queue, f"CREATE INDEX {name} ON message_{{q}} (msg_key)")
    set_key_index(on=True)

    assert [c.problem for c in key_indexes.build(actor=ACTOR)] == [""]
    assert indexed() == [True]


def test_the_job_builds_what_settings_ask_for_and_records_its_run(node: str) -> None:
    make_topic(key_index=False)
    assert not key_index_job.is_due()
    set_key_index(on=True)
    assert key_index_job.is_due()

    assert run_here(key_index_job.JOB) == 2

    row = JobRun.objects.get(name=key_index_job.JOB)
    assert (row.state, row.count, row.done, row.total) == ("done", 2, 2, 2)
    assert row.seen_at is not None
    assert (indexed(), key_index_job.is_due()) == ([True, True], False)


def test_a_failed_run_of_the_job_names_the_queues_and_is_not_repeated_at_once(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = make_topic(key_index=False)
    set_key_index(on=True)
    add = queue_sql.add_key_index

    def fail_once(session: object, *, queue: int) -> None:
        if queue == first:
            raise db_errors.Final("Node main answered 1799: the log is full")
        add(session, queue=queue)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_sql, "add_key_index", fail_once)
    with pytest.raises(key_index_job.NotBuilt, match="1 queues were not altered"):
        run_here(key_index_job.JOB)

    row = JobRun.objects.get(name=key_index_job.JOB)
    assert (row.state, row.count) == ("failed", 1)
    assert f"orders queue {first}: Node main answered 1799" in row.detail
    assert not key_index_job.is_due()
    JobRun.objects.update(finished_at=long_ago(seconds=3600))
    assert key_index_job.is_due()


def test_a_run_that_is_alive_lets_no_second_begin(node: str) -> None:
    make_topic(key_index=False)
    set_key_index(on=True)
    with runs.record_run(key_index_job.JOB):
        assert not key_index_job.is_due()
        JobRun.objects.update(
            seen_at=long_ago(seconds=3600), started_at=long_ago(seconds=3600)
        )
        assert key_index_job.is_due()
