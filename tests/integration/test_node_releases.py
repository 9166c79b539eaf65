"""A node whose tables a later release has changed for itself: every way to it says so, and
does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from brokerapi.http import health
from messagestore import retention, sweeping
from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim
from messagestore.consume.pull_types import PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.inspect import read_plans
from messagestore.nodes import preflight, promotion, registry, upgrade
from messagestore.pool import node_guard, node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import node_sql, promotion_sql
from messagestore.topology import membership, subscriptions, topics
from messagestore.verify import verify
from metadata import release
from metadata.actors import command
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import consumer_ids
from metadata.errors import Conflict, Invalid, NodeUnavailable
from metadata.groups import groups
from metadata.membership import consumers
from metadata.models import AuditLog, DbNode
from tests.support.older_tables import columns, evict, make_older, need

pytestmark = pytest.mark.one_engine

ACTOR = command("test")
REFUSED = rf"Node main needs CatMQ >= 9\.1, this is {release.VERSION}"


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`, with a message, read by group `billing`."""
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    send()
    return state.queues[0].queue.queue


@pytest.fixture
def info(queue: int) -> NodeInfo:
    return snapshot.find_node("main")


def send() -> Any:
    return publish(
        topic="orders", messages=[NewMessage(body=b"x")], batch_id=None, actor=ACTOR
    )


def pulled(queue: int) -> Callable[[], Any]:
    """A pull by a member that has acquired the queue."""
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(joined.consumer_id)
    (assigned,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    assert (
        positions.acquire(consumer=member, queues=[Claim(queue, assigned.epoch)])[0].state
        == "ok"
    )
    asked = [PullQueue(queue, assigned.epoch, 0)]
    return lambda: pull.pull(
        consumer=member, queues=asked, max_messages=9, max_bytes=1 << 20
    )


def test_a_running_broker_notices_within_a_pass_of_its_probe(
    queue: int, info: NodeInfo
) -> None:
    receive = pulled(queue)
    assert len(receive()[0].messages) == 1
    need(info, "9.1")
    registry.probe()
    for act in (send, receive):
        with pytest.raises(NodeUnavailable, match=REFUSED):
            act()
    assert registry.quarantined()["main"].startswith("Node main needs CatMQ >= 9.1")
    assert DbNode.objects.get(name="main").quarantined == "", (
        "brokers of that release go on"
    )
    assert any("needs CatMQ >= 9.1" in one for one in health.readiness().because)


def test_a_new_connection_notices_at_once(queue: int, info: NodeInfo) -> None:
    need(info, "9.1")
    evict(info)
    with pytest.raises(NodeUnavailable, match=REFUSED):
        send()


def test_commands_and_jobs_say_it_and_change_nothing(queue: int, info: NodeInfo) -> None:
    need(info, "9.1")
    registry.probe()
    epoch = DbNode.objects.get(name="main").epoch
    acts: list[Callable[[], object]] = [
        lambda: promotion.adopt(name="main", actor=ACTOR),
        lambda: registry.update(name="main", settings={"state": "read_only"}, actor=ACTOR),
        lambda: read_plans.read_plan(topic="orders", actor=ACTOR),
        lambda: topics.create(name="other", queues=1, node="main", actor=ACTOR),
    ]
    for act in acts:
        with pytest.raises(NodeUnavailable, match=REFUSED):
            act()
    row = DbNode.objects.get(name="main")
    assert (row.epoch, row.state) == (epoch, "read_write")
    assert "needs CatMQ >= 9.1" in upgrade.upgrade(actor=ACTOR)[0].problem
    assert "needs CatMQ >= 9.1" in str(retention.clean(actor=ACTOR)[0].problem)
    assert "needs CatMQ >= 9.1" in str(verify(topics=["orders"], actor=ACTOR))
    assert "needs CatMQ >= 9.1" in str(
        sweeping.query_nodes(sweeping.online_nodes(), lambda *_: None, subject="Test")
    )
    found = preflight.reexamine(name="main", actor=ACTOR, rights=False).findings
    (bad,) = [one.detail for one in found if one.verdict == "bad"]
    assert bad.endswith(node_guard.misfits()[info.id].why)


def test_a_database_that_a_later_release_left_is_not_registered(
    node_database: Callable[..., dict[str, Any]], metadata_db: None
) -> None:
    database = node_database()
    registry.register(name="left", actor=ACTOR, **database)
    snapshot.refresh()
    need(snapshot.find_node("left"), "9.1")
    DbNode.objects.all().delete()
    snapshot.evict()
    with pytest.raises(Invalid, match=r"Node again needs CatMQ >= 9\.1"):
        registry.register(name="again", actor=ACTOR, **database)


def test_a_node_is_served_again_when_what_is_there_fits(queue: int, info: NodeInfo) -> None:
    need(info, "9.1")
    registry.probe()
    need(info, "")  # a backup from before was restored
    registry.probe()
    send()


def test_a_feature_keeps_older_releases_out_once_none_of_them_runs(
    queue: int, info: NodeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = discovery.BrokerView("b1", "http://b1", "in", True, "0.1.0", 0, 0, None)
    monkeypatch.setattr(discovery._memory, "views", (lives,))
    with pytest.raises(
        Conflict, match=r"older than CatMQ 0\.2: b1 \(0\.1\.0\)\. Upgrade them first"
    ):
        upgrade.require_release(node="main", release="0.2", actor=ACTOR)
    monkeypatch.setattr(discovery._memory, "views", ())
    make_older()
    with pytest.raises(
        Conflict, match=r"has schema version 1: run manage\.py upgrade_nodes"
    ):
        upgrade.require_release(node="main", release="0.1", actor=ACTOR)
    upgrade.upgrade(actor=ACTOR)
    for needed in ("0.1", "0.0.9"):
        upgrade.require_release(node="main", release=needed, actor=ACTOR)
    with session_pool.direct(info) as session:
        assert promotion_sql.read_schema(session).min_release == "0.1", "it never falls"
    assert AuditLog.objects.get(verb="require", name="main").after == {"min_release": "0.1"}
    send()


def test_the_release_that_is_needed_outlives_an_adoption(
    queue: int, info: NodeInfo
) -> None:
    need(info, release.VERSION)
    promotion.adopt(name="main", actor=ACTOR)
    snapshot.refresh()
    with session_pool.direct(info) as session:
        assert promotion_sql.read_schema(session).min_release == release.VERSION
        assert node_sql.pending_changes(session) == []
    assert columns(info, "node_identity") == ["identity", "schema_version", "min_release"]
    assert node_pools.node(info.id).info.epoch == 2
    send()
