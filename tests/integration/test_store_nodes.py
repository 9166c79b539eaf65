"""Opening and closing nodes: what the node itself enforces, and metadata says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import Session
from messagestore.nodes import preflight, registry
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import promotion_sql, queue_sql
from messagestore.topology import topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, Forbidden, Invalid, NodeUnavailable, NoWritableQueue
from metadata.models import Queue
from metadata.nodes import node_rows
from metadata.nodes.node_rows import NodeView

ACTOR = command("test")
NOBODY = Actor(kind="key", name="nobody")


@pytest.fixture
def queues(node: str) -> list[int]:
    """The queues of topic `orders` on node `main`."""
    state = topics.create(name="orders", queues=3, actor=ACTOR)
    snapshot.refresh()
    return [queue.queue.queue for queue in state.queues]


def change(state: str) -> NodeView:
    return registry.update(name="main", settings={"state": state}, actor=ACTOR)


def states(queues: list[int]) -> list[str]:
    """What the node's heads say, asked behind the product's back."""
    session = session_pool.connect(snapshot.find_node("main"))
    try:
        heads = [queue_sql.read_head(session, queue=queue) for queue in queues]
    finally:
        session.close()
    return [head.state if head else "" for head in heads]


def send() -> Any:
    return publish(
        topic="orders", messages=[NewMessage(body=b"x")], batch_id=None, actor=ACTOR
    )[0]


def away(info: NodeInfo) -> Session:
    raise NodeUnavailable(f"Node {info.name} cannot be reached.")


def test_a_read_only_node_refuses_a_broker_whose_picture_is_older(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = snapshot.current()
    assert change("read_only").state == "read_only"
    monkeypatch.setattr(snapshot._holder, "snapshot", old)
    monkeypatch.setattr(snapshot, "refresh", lambda: False)

    with pytest.raises(NoWritableQueue):
        send()


def test_a_node_that_opens_takes_messages_in_those_queues_that_metadata_calls_open(
    queues: list[int],
) -> None:
    change("read_only")
    Queue.objects.filter(pk=queues[1]).update(state="read_only")
    with node_pools.node_of(queues[2]).writing() as session:
        queue_sql.set_queue_state(session, queue=queues[2], state="retired")

    change("read_write")

    assert states(queues) == ["rw", "ro", "retired"]


def test_a_node_is_closed_before_metadata_says_so_and_opened_after(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = node_rows.update, []

    def watched(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
        seen.append(states(queues))
        return real(name=name, settings=settings, actor=actor)

    monkeypatch.setattr(node_rows, "update", watched)
    change("read_only")
    change("read_write")

    assert seen == [["ro"] * 3, ["ro"] * 3]
    assert states(queues) == ["rw"] * 3


def test_a_node_that_cannot_be_reached_goes_offline_and_not_read_only(
    queues: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_pool, "connect", away)

    with pytest.raises(NodeUnavailable):
        change("read_only")
    assert node_rows.find_node(name="main", actor=ACTOR).state == "read_write"
    assert change("offline").state == "offline"

    assert "its queues could not be closed" in caplog.text
    monkeypatch.undo()
    assert states(queues) == ["rw"] * 3
    # possible although the pool lends nothing of it
    assert change("read_only").state == "read_only"
    assert states(queues) == ["ro"] * 3


def test_an_opening_that_could_not_reach_the_node_is_made_good_by_repeating_it(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    change("offline")
    monkeypatch.setattr(session_pool, "connect", away)
    with pytest.raises(NodeUnavailable):
        change("read_write")
    monkeypatch.undo()
    assert states(queues) == ["ro"] * 3

    change("read_write")

    assert states(queues) == ["rw"] * 3


@pytest.mark.parametrize(
    ("mine", "other"), [("read_only", "read_write"), ("read_write", "read_only")]
)
def test_when_two_change_a_node_at_once_its_heads_follow_what_metadata_says_last(
    *, queues: list[int], monkeypatch: pytest.MonkeyPatch, mine: str, other: str
) -> None:
    real = node_rows.update

    def overtaken(**arguments: Any) -> NodeView:
        monkeypatch.setattr(node_rows, "update", real)
        change(other)  # from its first step to its last, in the middle of ours
        return real(**arguments)

    change(other)
    monkeypatch.setattr(node_rows, "update", overtaken)
    change(mine)

    assert node_rows.find_node(name="main", actor=ACTOR).state == mine
    assert states(queues) == ["ro" if mine == "read_only" else "rw"] * 3


def test_an_update_that_is_refused_leaves_the_node_alone(queues: list[int]) -> None:
    with pytest.raises(Forbidden):
        registry.update(name="main", settings={"state": "read_only"}, actor=NOBODY)
    with pytest.raises(Invalid):
        registry.update(
            name="main", settings={"state": "read_only", "dedicated": 3}, actor=ACTOR
        )

    assert states(queues) == ["rw"] * 3


class Crash(BaseException):
    """The process dies here."""


def dies(*_: object, **__: object) -> Any:
    raise Crash


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (queue_sql, "set_queue_state"),
        (queue_sql, "read_head"),
        (promotion_sql, "write_identity"),
    ],
)
def test_a_registration_that_died_anywhere_is_repeated(
    *,
    node_database: Callable[..., dict[str, Any]],
    metadata_db: None,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    step: str,
) -> None:
    given = {"name": "n1", "actor": ACTOR, **node_database()}
    with monkeypatch.context() as dying, pytest.raises(Crash):
        dying.setattr(module, step, dies)
        registry.register(**given)
    assert preflight.examine(**given).passed
    assert registry.register(**given).name == "n1"
    with session_pool.direct(preflight.candidate(**{**given, "name": "n2"})) as session:
        assert queue_sql.read_heads(session, queues=None) == {}


@pytest.mark.parametrize(("conflicts", "ends_well"), [(2, True), (9, False)])
def test_a_registration_that_another_member_rolls_back_is_repeated(
    *,
    node_database: Callable[..., dict[str, Any]],
    metadata_db: None,
    monkeypatch: pytest.MonkeyPatch,
    conflicts: int,
    ends_well: bool,
) -> None:
    left = iter(range(conflicts))
    create = queue_sql.create_queue

    def create_in_conflict(*arguments: Any, **more: Any) -> None:
        if next(left, None) is not None:
            raise db_errors.RolledBack("Node n1 answered 1213: Deadlock found.")
        create(*arguments, **more)

    monkeypatch.setattr(registry, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(queue_sql, "create_queue", create_in_conflict)
    given = {"name": "n1", "actor": ACTOR, **node_database()}
    if ends_well:
        assert registry.register(**given).name == "n1"
    else:
        with pytest.raises(Invalid, match="Deadlock found"):
            registry.register(**given)


def test_other_settings_of_a_node_need_no_node(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "connect", away)
    assert registry.update(name="main", settings={"dedicated": True}, actor=ACTOR).dedicated


@pytest.mark.parametrize("engine_of_node", ["mysql", "sqlite"])
def test_who_sends_is_not_told_where_a_node_is_and_who_registers_is_told_why(
    *,
    metadata_db: None,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
    engine_of_node: str,
) -> None:
    given: dict[str, Any] = {
        "engine": "sqlite",
        "database": str(tmp_path),
        "host": "",
        "port": 0,
    }
    if engine_of_node == "mysql":
        given = {
            "engine": "mysql",
            "database": "catmq",
            "host": "127.0.0.1",
            "port": 1,
            "username": "u",
        }
    info = NodeInfo(
        id=0, name="far", kind="normal", password="p", state="read_write", dedicated=False, epoch=1,
        capacity_gb=None, **({"username": ""} | given),
    )  # fmt: skip
    connect: Callable[[NodeInfo], Session] = session_pool.connect

    with pytest.raises(NodeUnavailable) as told:
        connect(info)
    with pytest.raises(CatmqError) as refused:
        registry.register(name="far", actor=ACTOR, **given)

    assert told.value.detail == "Node far cannot be reached."
    reason = "onnect" if engine_of_node == "mysql" else "unable to open"
    assert reason in refused.value.detail
    assert reason in caplog.text
