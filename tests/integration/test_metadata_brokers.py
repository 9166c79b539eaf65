"""The registry of brokers on a real database: who is alive, who has a name, who may be
drained.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from catmq_site.background.table import JOBS
from metadata.actors import Actor
from metadata.brokers import broker_rows, discovery, registration
from metadata.brokers.discovery import BrokerView
from metadata.brokers.registration import BrokerIdentity, Registration
from metadata.db.clock import database_now
from metadata.errors import (
    Code,
    Conflict,
    Forbidden,
    Invalid,
    MetadataUnavailable,
    NotFound,
)
from metadata.limits.bulkhead import bulkhead
from metadata.models import AuditLog, Broker, ChangeCounter
from tests.support import rows

pytestmark = pytest.mark.usefixtures("metadata_db", "fresh_memory")


@pytest.fixture
def fresh_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has read nothing yet, and nothing was in vain."""
    monkeypatch.setattr(bulkhead, "_failed", 0)
    registration.evict()
    yield
    registration.evict()


def life(name: str = "b1", url: str = "") -> BrokerIdentity:
    """A new life of a broker."""
    return BrokerIdentity(name, url or f"http://{name}:8000", "1.0", str(uuid.uuid4()))


def beat(one: BrokerIdentity, *, held: bool = False) -> Registration:
    """A heartbeat."""
    return registration.heartbeat(identity=one, held=held)


def shift(name: str, seconds: float) -> None:
    """Moves the last sign of life of a broker into the past, or the future."""
    Broker.objects.filter(name=name).update(
        last_seen=database_now() - timedelta(seconds=seconds)
    )


def shown(name: str = "b1") -> BrokerView:
    """A broker as it is now."""
    return discovery.find_broker(name=name, actor=rows.ME)


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata database does not answer."""

    def refuse() -> Any:
        raise OperationalError(2006, "gone")

    monkeypatch.setattr(discovery, "read_rows", refuse)


def test_the_first_heartbeat_registers_a_broker_that_is_in() -> None:
    mine = life()

    assert beat(mine) == Registration("in")

    view = shown()
    assert (view.name, view.url, view.version, view.state) == (
        "b1",
        "http://b1:8000",
        "1.0",
        "in",
    )
    assert (view.alive, view.stopped_at_ms) == (True, None)
    assert view.started_at_ms == view.last_seen_at_ms
    assert discovery.list_brokers(actor=rows.ME) == (view,)


def test_workers_that_start_together_are_one_broker(
    in_threads: Callable[..., list[Any]],
) -> None:
    mine = life()

    assert in_threads([lambda: beat(mine)] * 4) == [Registration("in")] * 4
    assert Broker.objects.count() == 1


def test_a_heartbeat_right_after_another_workers_costs_one_look() -> None:
    mine = life()
    beat(mine)
    seen = Broker.objects.get().last_seen

    with CaptureQueriesContext(connection) as queries:
        beat(mine)
    assert len(queries) == 1
    assert Broker.objects.get().last_seen == seen

    shift("b1", 1.0)
    beat(mine)
    assert (database_now() - Broker.objects.get().last_seen).total_seconds() < 0.9


def test_heartbeats_and_pulling_out_are_no_changes_of_the_snapshot() -> None:
    before = ChangeCounter.objects.get().n
    beat(life())
    beat(life("b2"))
    broker_rows.set_state(name="b1", state="out", actor=rows.ME)
    assert ChangeCounter.objects.get().n == before


@pytest.mark.parametrize(
    ("silent_s", "lives"), [(0, True), (9, True), (11, False), (-3600, False)]
)
def test_a_broker_is_alive_for_ten_seconds_after_it_was_seen(
    *, silent_s: float, lives: bool
) -> None:
    beat(life())
    shift("b1", silent_s)
    assert shown().alive is lives


def test_a_clock_that_was_set_back_is_followed_by_the_next_heartbeat() -> None:
    mine = life()
    beat(mine)
    shift("b1", -3600)
    beat(mine)
    assert shown().alive


def test_the_next_life_has_the_name_at_once_and_stays_out() -> None:
    beat(life())
    beat(life("b2"))
    broker_rows.set_state(name="b1", state="out", actor=rows.ME)
    Broker.objects.filter(name="b1").update(started_at=database_now() - timedelta(days=1))
    before = shown()

    assert beat(life()) == Registration("out")

    assert shown().started_at_ms > before.started_at_ms
    assert Broker.objects.count() == 2


def test_a_broker_that_says_good_bye_is_no_longer_alive_until_its_next_life() -> None:
    mine = life()
    beat(mine)

    assert registration.record_stop(identity=mine)

    assert not discovery.list_brokers(actor=rows.ME)[0].alive
    beat(mine)  # of another worker, which has not heard of the end yet
    assert (shown().alive, shown().stopped_at_ms is None) == (False, False)
    assert not registration.record_stop(identity=mine)
    beat(life())
    assert (shown().alive, shown().stopped_at_ms) == (True, None)


def test_a_good_bye_that_comes_late_does_not_stop_the_next_life() -> None:
    old = life()
    beat(old)
    beat(life())
    assert not registration.record_stop(identity=old)
    assert shown().alive


def test_a_live_broker_elsewhere_keeps_its_name_and_the_other_is_told_why() -> None:
    first, second = life(), life(url="http://elsewhere:8000")
    beat(first)

    refused = beat(second)

    assert not refused.registered
    assert "http://b1:8000" in refused.complaint
    assert "CATMQ_BROKER_NAME" in refused.complaint
    assert registration.registration_problem() == refused.complaint
    assert shown().url == "http://b1:8000"
    shift("b1", 11)
    assert beat(second).registered
    assert registration.registration_problem() == ""
    assert shown().url == "http://elsewhere:8000"


def test_of_two_live_brokers_with_one_name_and_url_the_older_gives_way_and_is_told_why() -> (
    None
):
    old, new = life(), life()
    beat(old)
    beat(new)
    beat(life("b2"))
    broker_rows.set_state(name="b1", state="out", actor=rows.ME)

    told = beat(old, held=True)

    assert not told.registered
    assert "CATMQ_BROKER_NAME" in told.complaint
    assert told.state == "in", "what is drained is the other one"
    assert Broker.objects.get(name="b1").incarnation == new.incarnation
    assert beat(new, held=True) == Registration("out")
    registration.record_stop(identity=new)
    assert beat(old, held=True).registered


def test_the_list_comes_from_memory_and_outlives_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = life()
    beat(mine)
    with CaptureQueriesContext(connection) as queries:
        before = discovery.list_brokers(actor=rows.ME)
    assert len(queries) == 0

    away(monkeypatch)

    with pytest.raises(MetadataUnavailable):
        beat(mine)
    assert discovery.list_brokers(actor=rows.ME) == before == (shown(),)
    registration.evict()
    with pytest.raises(MetadataUnavailable):
        discovery.list_brokers(actor=rows.ME)
    with pytest.raises(MetadataUnavailable):
        shown()


def test_a_process_without_the_loop_reads_the_database() -> None:
    rows_before = discovery.list_brokers(actor=rows.ME)
    Broker.objects.create(
        name="b1", url="u", started_at=database_now(), last_seen=database_now()
    )
    assert rows_before == ()
    assert [one.name for one in discovery.list_brokers(actor=rows.ME)] == ["b1"]


def test_after_an_outage_nobody_is_called_dead_before_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(discovery, "monotonic", lambda: now[0])
    mine = life()
    for one in (mine, life("b2"), life("b3"), life("b4")):
        beat(one)
    registration.record_stop(identity=mine)
    shift("b3", 11)
    now[0] += 1
    beat(life("b5"))
    alive = ("b2", "b4", "b5")
    assert _alive() == alive

    now[0] += 30  # metadata was away
    for name in ("b2", "b4"):
        shift(name, 30)
    beat(life("b5"))
    assert _alive() == alive
    assert shown("b2").alive
    with pytest.raises(Conflict):
        broker_rows.forget_broker(name="b2", confirm="b2", actor=rows.ME)
    shift("b4", 0)
    for _ in range(3):
        now[0] += 3.0
        beat(life("b5"))
        assert _alive() == alive
    now[0] += 1.5
    beat(life("b5"))
    assert _alive() == ("b4", "b5")


def _alive() -> tuple[str, ...]:
    return tuple(one.name for one in discovery.list_brokers(actor=rows.ME) if one.alive)


def test_pulling_out_is_audited_once_and_shown_at_once() -> None:
    beat(life())
    beat(life("b2"))

    for _ in range(2):
        assert broker_rows.set_state(name="b1", state="out", actor=rows.ME).state == "out"

    assert discovery.list_brokers(actor=rows.ME)[0].state == "out"
    audit = AuditLog.objects.get()
    assert (audit.verb, audit.kind, audit.name) == ("update", "broker", "b1")
    assert (audit.before, audit.after) == ({"state": "in"}, {"state": "out"})


def test_pulling_in_or_out_needs_admin_a_broker_and_a_state() -> None:
    beat(life())
    for rights in ({"manage": ("*",)}, {"admin": ("other*",)}):
        with pytest.raises(Forbidden):
            broker_rows.set_state(
                name="b1", state="out", actor=Actor(kind="key", name="k", rights=rights)
            )
        with pytest.raises(Forbidden):
            broker_rows.forget_broker(
                name="b1", confirm="b1", actor=Actor(kind="key", name="k", rights=rights)
            )
    with pytest.raises(NotFound) as unknown:
        broker_rows.set_state(name="B1", state="out", actor=rows.ME)
    assert unknown.value.code is Code.BROKER_NOT_FOUND
    with pytest.raises(Invalid):
        broker_rows.set_state(name="b1", state="up", actor=rows.ME)
    assert (shown().state, AuditLog.objects.count()) == ("in", 0)


def test_the_last_live_broker_that_is_in_stays_in() -> None:
    for name in ("b1", "b2", "b3", "b4"):
        beat(life(name))
    shift("b2", 11)
    broker_rows.set_state(name="b3", state="out", actor=rows.ME)
    broker_rows.set_state(name="b4", state="out", actor=rows.ME)

    with pytest.raises(Conflict) as refused:
        broker_rows.set_state(name="b1", state="out", actor=rows.ME)

    assert refused.value.code is Code.LAST_BROKER
    assert shown().state == "in"
    assert broker_rows.set_state(name="b2", state="out", actor=rows.ME).state == "out", (
        "it serves nobody anyway"
    )
    broker_rows.set_state(name="b3", state="in", actor=rows.ME)
    assert broker_rows.set_state(name="b1", state="out", actor=rows.ME).state == "out"


def test_of_two_that_are_pulled_out_at_once_one_stays_in() -> None:
    beat(life())
    beat(life("b2"))

    def second() -> Any:
        try:
            return broker_rows.set_state(name="b2", state="out", actor=rows.ME)
        except Conflict as error:
            return error.code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            broker_rows.set_state(name="b1", state="out", actor=rows.ME)
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
        assert waiting.result(timeout=20) is Code.LAST_BROKER


def test_a_broker_is_forgotten_when_it_is_no_longer_alive() -> None:
    beat(life())
    with pytest.raises(Invalid) as unconfirmed:
        broker_rows.forget_broker(name="b1", confirm="", actor=rows.ME)
    assert unconfirmed.value.code is Code.NOT_CONFIRMED
    with pytest.raises(Conflict) as living:
        broker_rows.forget_broker(name="b1", confirm="b1", actor=rows.ME)
    assert living.value.code is Code.IN_USE
    with pytest.raises(NotFound):
        broker_rows.forget_broker(name="b", confirm="b", actor=rows.ME)

    shift("b1", 11)
    broker_rows.forget_broker(name="b1", confirm="b1", actor=rows.ME)

    assert discovery.list_brokers(actor=rows.ME) == ()
    assert AuditLog.objects.get().verb == "delete"


def test_brokers_not_seen_for_a_week_are_forgotten_by_a_job_some_at_a_time() -> None:
    for name in ("b1", "b2", "b3", "b4"):
        beat(life(name))
    for name in ("b1", "b2", "b3"):
        shift(name, 7 * 86_400 + 60)
    shift("b4", 7 * 86_400 - 60)

    assert broker_rows.prune_silent(limit=2) == 2
    assert JOBS["prune_brokers"].run() == 1
    assert JOBS["prune_brokers"].run() == 0

    assert [one.name for one in Broker.objects.all()] == ["b4"]
    assert {(one.actor_kind, one.verb) for one in AuditLog.objects.all()} == {
        ("job", "delete")
    }
