"""The answers of a broker to heartbeats that it cannot record, and the promises in them."""

from __future__ import annotations

import mmap
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from metadata.cache import snapshot
from metadata.db import contact as module
from metadata.db.consumer_ids import ConsumerId
from metadata.db.contact import SIZE, Contact
from metadata.errors import Code, MetadataUnavailable, Unrecorded
from metadata.limits.bulkhead import Bulkhead
from metadata.membership import heartbeats
from metadata.rules.membership import liveness

ME = ConsumerId(1, 0, 1, "x")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of contacts, s."""
    value = [1000.0]
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic_ns=lambda: int(value[0] * 1e9))
    )
    return value


@pytest.fixture
def contact(now: list[float], monkeypatch: pytest.MonkeyPatch) -> Contact:
    made = Contact()
    monkeypatch.setattr(heartbeats, "contact", made)
    return made


@pytest.fixture
def bulkhead(monkeypatch: pytest.MonkeyPatch) -> Bulkhead:
    """The bulkhead of the process, which a loop looks after."""
    made = Bulkhead()
    made.check_database(lambda: None)
    monkeypatch.setattr(heartbeats, "bulkhead", made)
    return made


def test_a_silent_database_is_told_at_once_with_a_promise(
    now: list[float], contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    combined = SimpleNamespace(submit=submitted.append, stuck_s=lambda: 0.0)
    monkeypatch.setattr(heartbeats, "_coalescer", combined)
    now[0] += 2.0
    with pytest.raises(Unrecorded) as raised:
        heartbeats.heartbeat(consumer=ME, generation=0, owned=[])
    assert (raised.value.code, raised.value.silent_ms) == (Code.METADATA_UNAVAILABLE, 2000)
    assert contact.promised_at_s() == now[0]
    assert submitted == []


def test_a_heartbeat_that_finds_the_database_away_is_told_so_with_a_promise(
    now: list[float], contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(beat: object) -> None:
        now[0] += 2.0
        contact.heard()  # something answers, but nothing can be written
        now[0] += 1.0
        raise MetadataUnavailable("read-only")

    monkeypatch.setattr(
        heartbeats, "_coalescer", SimpleNamespace(submit=submit, stuck_s=lambda: 0.0)
    )
    with pytest.raises(Unrecorded) as raised:
        heartbeats.heartbeat(consumer=ME, generation=0, owned=[])
    assert raised.value.silent_ms == 1000
    assert contact.promised_at_s() == now[0]


def test_a_process_that_alone_cannot_record_promises_nothing(
    contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(beat: object) -> None:
        contact.recorded()  # by another process
        raise MetadataUnavailable("too many connections")

    monkeypatch.setattr(
        heartbeats, "_coalescer", SimpleNamespace(submit=submit, stuck_s=lambda: 0.0)
    )
    with pytest.raises(MetadataUnavailable) as raised:
        heartbeats.heartbeat(consumer=ME, generation=0, owned=[])
    assert (type(raised.value), raised.value.code) == (MetadataUnavailable, Code.BUSY)
    assert contact.promised_at_s() == 0


def test_a_process_that_has_too_much_to_do_promises_nothing(
    now: list[float], contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(beat: object) -> None:
        now[0] += 60.0
        raise MetadataUnavailable("full", code=Code.BUSY)

    monkeypatch.setattr(
        heartbeats, "_coalescer", SimpleNamespace(submit=submit, stuck_s=lambda: 0.0)
    )
    with pytest.raises(MetadataUnavailable) as raised:
        heartbeats.heartbeat(consumer=ME, generation=0, owned=[])
    assert raised.value.code == Code.BUSY
    assert contact.promised_at_s() == 0


def test_a_batch_that_is_stuck_refuses_the_next_heartbeats_at_once(
    contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    combined = SimpleNamespace(submit=submitted.append, stuck_s=lambda: 1.6)
    monkeypatch.setattr(heartbeats, "_coalescer", combined)
    with pytest.raises(MetadataUnavailable):
        heartbeats.heartbeat(consumer=ME, generation=0, owned=[])
    assert submitted == []


def test_what_nobody_knows_is_not_asked_of_a_silent_database(
    now: list[float], contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = snapshot._Holder()
    loads: list[bool] = []
    monkeypatch.setattr(holder, "renew", lambda: loads.append(True))
    monkeypatch.setattr(snapshot, "contact", contact)
    monkeypatch.setattr(snapshot, "bulkhead", bulkhead)
    holder.renew_after_miss()
    now[0] += 2.0
    with pytest.raises(MetadataUnavailable):
        holder.renew_after_miss()
    assert loads == [True]


def test_a_look_up_that_shares_a_failed_load_does_not_take_the_name_for_unknown(
    contact: Contact, bulkhead: Bulkhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = snapshot._Holder()
    monkeypatch.setattr(snapshot, "contact", contact)
    monkeypatch.setattr(snapshot, "bulkhead", bulkhead)
    monkeypatch.setattr(snapshot, "MISS_EVERY_S", 30.0)
    monkeypatch.setattr(holder, "renew", lambda: pytest.fail("another load was under way"))
    holder.began_at = time.monotonic()

    def fail_a_load() -> None:
        """Another thread's load begins and fails while the look-up waits for it."""
        with holder.turn:
            holder.last_begun, holder.last_ended, holder.failed = 1, 1, True
            holder.turn.notify_all()

    other = threading.Timer(0.05, fail_a_load)
    other.start()
    with pytest.raises(MetadataUnavailable):
        holder.renew_after_miss()
    other.join()


def test_what_one_process_of_a_broker_hears_or_promises_all_of_them_know(
    now: list[float],
) -> None:
    memory = mmap.mmap(-1, SIZE)
    one, two = Contact(), Contact()
    for each in (one, two):
        each.share(memory)
    now[0] += 5.0
    assert two.silent_s() == 5.0
    one.recorded()
    assert (two.silent_s(), two.unrecorded_s()) == (0.0, 0.0)
    one.promise()
    assert two.promised_at_s() == now[0]


def test_a_broker_that_just_started_does_not_say_that_it_has_heard_nothing_for_long(
    now: list[float],
) -> None:
    now[0] = 1e6
    assert Contact().silent_s() == 0.0


def test_nobody_expires_for_a_session_after_a_promise() -> None:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    look = liveness.ClockReading("s", begun + timedelta(seconds=100), monotonic_s=200.0)
    watch = liveness.Watch(look, steady_since_s=0.0)
    silent = [(1, begun, 10_000)]
    assert liveness.find_expired(watch, silent) == [1]
    assert (
        liveness.find_expired(liveness.after_promise(watch, promised_at_s=189.5), silent)
        == []
    )
    assert liveness.find_expired(
        liveness.after_promise(watch, promised_at_s=189.0), silent
    ) == [1]
