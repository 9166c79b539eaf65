"""The exercise: load, mark, backup under load, more load, restore, check, adopt, verify,
and go on.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections

from messagestore import verify
from messagestore.engine.messages import NewMessage
from messagestore.nodes import promotion, registry
from messagestore.nodes.replica_inspection import JUMP
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import message_sql
from messagestore.topology import drains, queues, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import Conflict, NodeUnavailable
from metadata.groups import groups
from metadata.models import ConsumerGroup, DbNode, Queue
from metadata.rules import grants
from tests.support import dumping
from tests.support.environment import ENGINE
from tests.support.instances import Instance
from tests.support.mariadb import MariaDB

ACTOR = command("test")
QUEUES = 4


@dataclass
class Load:
    """What was sent: {(queue, offset): body}, in an order that the seed chooses."""

    queues: list[int]
    chance: random.Random
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def send(self, batches: int) -> None:
        for _ in range(batches):
            queue = self.chance.choice(self.queues)
            bodies = [uuid4().bytes for _ in range(self.chance.randint(1, 20))]
            messages = [NewMessage(body=body, queue=queue) for body in bodies]
            receipts = publish(
                topic="orders", messages=messages, batch_id=None, actor=ACTOR
            )
            for body, receipt in zip(bodies, receipts, strict=True):
                self.sent[queue, receipt.offset] = body  # type: ignore[union-attr]

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Sends all the time in another thread, and has sent something before the block
        begins.
        """
        begun, over = threading.Event(), threading.Event()

        def send() -> None:
            try:
                while not over.is_set():
                    self.send(1)
                    begun.set()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            assert begun.wait(10)
            try:
                yield
            finally:
                over.set()
            sending.result(30)

    def heads(self) -> dict[int, int]:
        return {
            queue: max([at + 1 for of, at in self.sent if of == queue], default=0)
            for queue in self.queues
        }


@pytest.fixture
def load(node: str) -> Load:
    """Topic `orders` with some queues, read by `billing` and `audit`."""
    made = topics.create(name="orders", queues=QUEUES, actor=ACTOR)
    for group in ("billing", "audit"):
        groups.create(name=group, actor=ACTOR)
        subscriptions.create(group=group, topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    return Load([one.queue.queue for one in made.queues], random.Random(7))


@pytest.fixture
def backup(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], Callable[[], None]]]:
    """A function that makes a backup of node `main`, and returns one that restores it.

    On a server the account of the dump has the declared rights, no others.
    """
    if ENGINE == "sqlite":

        def copy() -> Callable[[], None]:
            file = Path(snapshot.find_node("main").database)
            dumping.vacuum_into(file, tmp_path / "backup")
            return lambda: dumping.put_back(tmp_path / "backup", file)

        yield copy
        return
    server: MariaDB = request.getfixturevalue("mariadb")
    name, password = f"backup_{uuid4().hex[:12]}", uuid4().hex
    server.execute(f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY '{password}'")

    def dump() -> Callable[[], None]:
        schema = snapshot.find_node("main").database
        flavour = (
            "mariadb" if "MariaDB" in server.execute("SELECT VERSION()")[0][0] else "mysql"
        )
        where = {"database": schema, "username": name, "host": "127.0.0.1"}
        for statement in grants.grant_statements(grants.BACKUP, flavour=flavour, **where):
            server.execute(statement)
        text = dumping.dump(server, schema, (name, password))
        return lambda: dumping.load(server, schema, text)

    yield dump
    server.execute(f"DROP USER '{name}'@'127.0.0.1'")


def manage(*arguments: str) -> tuple[int, str]:
    """(exit code, output with the error's text) of a command."""
    out = StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


def checked(mark: Path) -> tuple[int, dict[str, Any]]:
    """(exit code, answer) of restore_check."""
    code, out = manage("restore_check", str(mark), "--json")
    return code, json.loads(out[: out.rindex("}") + 1])


def read(
    member: Instance, queue: int, offset: int
) -> tuple[dict[int, bytes], int, tuple[int, int] | None]:
    """Messages from an offset on to the end, the offset behind them, and the lost tail that
    was told.
    """
    found: dict[int, bytes] = {}
    told = None
    while True:
        answer = member.pull(queue, offset)
        if answer.state == "lost_tail":
            assert (
                told is None and answer.gap is not None and answer.next_offset is not None
            )
            told, offset = answer.gap, answer.next_offset
            continue
        assert answer.state == "ok", answer
        if not answer.messages:
            return found, offset, told
        for one in answer.messages:
            assert one.offset not in found
            found[one.offset] = one.body
        offset = answer.messages[-1].offset + 1


def test_a_node_is_restored_from_a_backup_that_was_made_under_load(
    load: Load, backup: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    load.send(40)
    positions = {queue: head // 2 for queue, head in load.heads().items()}
    member = Instance("one", group="billing").join()
    assert {state for state, _ in member.take().values()} == {"ok"}
    commit(member, positions)
    mark = tmp_path / "mark.json"
    assert manage("backup_mark", "--file", str(mark))[0] == 0
    with load.going_on():
        restore = backup()
    assert checked(mark)[0] == 0, "nothing is wrong before"
    load.send(20)
    before = load.heads()
    commit(member, {queue: head - 1 for queue, head in before.items()})
    bring_back(restore)
    with pytest.raises(NodeUnavailable, match="the node lost messages"):
        load.send(4 * QUEUES)
    left, lost = losses(mark, before)
    old = dict(load.sent)
    kept = {
        place: body
        for place, body in old.items()
        if place[1] < left.get(place[0], before[place[0]])
    }
    adopt_and_verify()
    load.send(10 * QUEUES)
    new = {place: load.sent[place] for place in load.sent.keys() - old.keys()}
    assert all(at >= before[queue] + JUMP for queue, at in new if queue in lost)
    assert {place: load.sent[place] for place in old} == old, "no offset was given twice"
    told = read_all(member, positions, kept | new)
    assert told == set(positions) & lost.keys()


def read_all(
    member: Instance, positions: dict[int, int], stored: dict[tuple[int, int], bytes]
) -> set[int]:
    """Reads and commits all that is left, and nothing that was committed before; queues
    told of a loss.
    """
    found = set()
    for queue, position in positions.items():
        messages, end, told = read(member, queue, position)
        assert messages == {
            at: body for (of, at), body in stored.items() if of == queue and at >= position
        }
        commit(member, {queue: end})
        if told is not None:
            found.add(queue)
    return found


def commit(member: Instance, positions: dict[int, int]) -> None:
    for queue, position in positions.items():
        assert member.commit(queue, position) == "ok"


def bring_back(restore: Callable[[], None]) -> None:
    """Metadata has noted the ends; then the database is what it was."""
    registry.note_heads()
    registry.note_heads()
    node_pools.evict_all()
    restore()


def adopt_and_verify() -> None:
    promotion.adopt(name="main", actor=ACTOR)
    snapshot.refresh()
    report = verify.verify(topics=["orders"], actor=ACTOR, rows_per_s=0, digests=True)
    assert (report.complete, report.findings) == (True, ())


def losses(mark: Path, before: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """{queue: its end} where that changed, and {queue: lost messages}, as restore_check
    rightly says.
    """
    code, found = checked(mark)
    (node,) = found["nodes"]
    assert (code, node["state"]) == (1, "behind")
    assert "adopt_restored_node main" in node["advice"]
    left = {one["queue"]: one["found"] for one in node["queues"]}
    lost = {one["queue"]: one["lost"] for one in node["queues"] if one["lost"]}
    assert lost == {
        queue: head - left[queue] for queue, head in before.items() if head > left[queue]
    }
    assert sum(lost.values()) > 0
    told = {(one["group"], one["queue"]) for one in node["groups"]}
    assert told == {(group, queue) for group in ("billing", "audit") for queue in lost}
    return left, lost


def send_later(count: int) -> list[str]:
    """Sends messages that wait for an hour; their ids."""
    messages = [NewMessage(body=b"later", delay_ms=3_600_000) for _ in range(count)]
    receipts = publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    return [one.message_id for one in receipts]


def test_delayed_messages_that_a_restore_lost_are_counted_and_their_ids_are_not_given_again(
    load: Load, backup: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    mark = tmp_path / "mark.json"
    assert manage("backup_mark", "--file", str(mark))[0] == 0
    kept = send_later(10)
    restore = backup()
    lost = send_later(81)
    assert checked(mark)[0] == 0, "nothing is wrong before"
    bring_back(restore)
    registry.note_heads()  # it must not forget by what it reads now
    code, found = checked(mark)
    (node,) = found["nodes"]
    assert (code, node["state"], node["lost"], node["delayed"]) == (1, "behind", 0, 81)
    assert (
        "up to 81 messages that waited for their time"
        in manage("restore_check", str(mark))[1]
    )
    assert "up to 81 messages" in manage("adopt_restored_node", "main", "--dry-run")[1]
    assert "Note: up to 81 messages" in manage("adopt_restored_node", "main", "--yes")[1]
    snapshot.refresh()
    code, found = checked(mark)
    assert (code, found["nodes"][0]["delayed"]) == (0, 0)
    new = send_later(3)
    assert not {*new} & {*kept, *lost}
    registry.note_heads()
    assert checked(mark)[1]["nodes"][0]["delayed"] == 0


def test_a_mark_that_was_made_before_the_loss_says_after_it_what_was_declared(
    load: Load, backup: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    load.send(20)
    restore = backup()
    load.send(20)
    mark = tmp_path / "mark.json"
    assert manage("backup_mark", "--file", str(mark))[0] == 0
    node_pools.evict_all()
    restore()
    code, out = manage("restore_check", str(mark))
    assert code == 1
    assert "Do: Run manage.py adopt_restored_node main, then manage.py verify --all." in out
    promotion.adopt(name="main", actor=ACTOR)
    code, found = checked(mark)
    (node,) = found["nodes"]
    assert (code, node["state"]) == (0, "declared")
    assert sum(one["declared"] for one in node["queues"]) == node["lost"] > 0


def test_a_node_that_is_away_is_named_and_no_half_mark_is_written(
    load: Load, tmp_path: Path
) -> None:
    file = tmp_path / "mark.json"
    DbNode.objects.update(
        **({"port": 9} if ENGINE == "mysql" else {"database": "/nowhere/else.sqlite3"})
    )
    snapshot.evict()
    node_pools.evict_all()
    code, out = manage("backup_mark", "--file", str(file))
    assert (code, list(tmp_path.glob("*mark*"))) == (3, [])
    assert "Nothing was written. Not reached: main" in out
    code, out = manage("backup_mark", "--file", str(file), "--allow-missing")
    assert code == 0
    assert [one["name"] for one in json.loads(file.read_text())["missing"]] == ["main"]
    assert checked(file)[0] == 3
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.one_engine
@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"form": 2}', '{"form": 1}', "\x00"])
def test_a_file_that_is_no_mark_is_refused(node: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "mark.json"
    file.write_text(text)
    code, out = manage("restore_check", str(file))
    assert code == 1
    assert "file" in out


@pytest.mark.one_engine
def test_a_mark_holds_no_secret(load: Load) -> None:
    code, out = manage("backup_mark")
    info = snapshot.find_node("main")
    assert code == 0
    assert json.loads(out)["form"] == 1
    for secret in (info.password, info.host, info.username):
        assert not secret or f'"{secret}"' not in out


@contextmanager
def older_metadata(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], None]]:
    """A function that restores metadata as it was at the beginning of the block."""
    database = str(connection.settings_dict["NAME"])
    if ENGINE == "sqlite":
        dumping.vacuum_into(Path(database), tmp_path / "metadata")
        yield lambda: dumping.put_back(tmp_path / "metadata", Path(database))
        return
    server: MariaDB = request.getfixturevalue("mariadb")
    text = dumping.dump(server, database, ("catmq", server.password))

    def restore() -> None:
        connections.close_all()
        dumping.load(server, database, text)

    yield restore


def bodies(queue: int) -> list[bytes]:
    """The messages in the table of a queue, whether metadata knows it or not."""
    with session_pool.direct(snapshot.find_node("main")) as session:
        found = message_sql.select_messages(
            session, queue=queue, first=0, end=100, most_bytes=1 << 20
        )
        return [one.body for one in found]


def test_a_new_queue_does_not_get_the_messages_of_an_earlier_one(
    load: Load, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with older_metadata(request, tmp_path) as restore:
        payments = topics.create(name="payments", queues=6, actor=ACTOR)
        snapshot.refresh()
        lost = [one.queue.queue for one in payments.queues]
        messages = [NewMessage(body=b"%d" % queue, queue=queue) for queue in lost]
        publish(topic="payments", messages=messages, batch_id=None, actor=ACTOR)
        restore()
    node_pools.evict_all()
    snapshot.refresh()
    for make in (
        lambda: topics.create(name="invoices", queues=2, actor=ACTOR),
        lambda: queues.expand(topic="orders", queues=2, actor=ACTOR),
    ):
        with pytest.raises(
            Conflict, match=r"earlier queues \d+, \d+, .* restore_check FILE --raise-ids"
        ):
            make()
    assert (topics.sweep(-1), queues.sweep(-1)) == (0, 0)
    assert (topics.drop_deleted(-1), drains.drop_retired(after_days=-1)) == (0, 0)
    assert [bodies(queue) for queue in lost] == [[b"%d" % queue] for queue in lost]
    mark = tmp_path / "mark.json"
    assert manage("backup_mark", "--file", str(mark))[0] == 0
    assert manage("restore_check", str(mark), "--raise-ids")[0] == 0
    made = queues.expand(topic="orders", queues=1, actor=ACTOR)
    assert made.queues[0].queue > max(lost)


def test_metadata_that_is_older_than_the_nodes_gives_no_id_of_theirs_again(
    load: Load, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    mark = tmp_path / "mark.json"
    with older_metadata(request, tmp_path) as restore:
        assert manage("backup_mark", "--file", str(mark))[0] == 0
        queues.expand(topic="orders", queues=2, actor=ACTOR)
        groups.create(name="late", actor=ACTOR)
        subscriptions.create(group="late", topic="orders", start="latest", actor=ACTOR)
        topics.create(name="payments", queues=2, actor=ACTOR)
        snapshot.refresh()
        publish(
            topic="payments",
            messages=[NewMessage(body=b"x")] * 20,
            batch_id=None,
            actor=ACTOR,
        )
        load.send(20)
        highest, group = (
            Queue.objects.latest("pk").pk,
            ConsumerGroup.objects.latest("pk").pk,
        )
        restore()
    node_pools.evict_all()
    snapshot.refresh()
    code, out = manage("restore_check", str(mark))
    assert code == 1
    assert f"Before a broker starts, run manage.py restore_check {mark} --raise-ids" in out
    assert manage("restore_check", str(mark), "--raise-ids")[0] == 0
    assert manage("restore_check", str(mark))[0] == 0
    made = topics.create(name="invoices", queues=2, actor=ACTOR)
    assert {(one.low, one.head) for one in made.queues} == {(0, 0)}, (
        "none of the messages of payments"
    )
    assert min(one.queue.queue for one in made.queues) > highest
    groups.create(name="new", actor=ACTOR)
    assert ConsumerGroup.objects.latest("pk").pk > group
    snapshot.refresh()
    load.send(10)
    report = verify.verify(topics=["orders", "invoices"], actor=ACTOR, rows_per_s=0)
    assert (report.complete, report.findings) == (True, ())
