"""The doctor finds nothing on a healthy installation, and every fault that is planted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.migrations.recorder import MigrationRecorder

from catmq_site.jobs import tasks
from messagestore.doctor import (
    checkup,
    diagnosis,
    metadata_checks,
    site_checks,
)
from messagestore.doctor.checkup import Check
from messagestore.doctor.findings import Report, SubjectKind, finding
from messagestore.engine import schema_steps
from messagestore.engine.messages import NewMessage
from messagestore.nodes import disks, preflight
from messagestore.nodes.disks import Space
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.actors import Actor
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import migration_state
from metadata.db.clock import database_now
from metadata.errors import Forbidden, MetadataUnavailable, NodeUnavailable
from metadata.jobs import runs
from metadata.models import (
    Alarm,
    AlarmMail,
    ApiKey,
    Broker,
    BrokerProcess,
    DbNode,
    JobRun,
    KeyFingerprint,
    NodeSize,
)
from metadata.monitoring import alarms
from metadata.topics import topic_rows
from metadata.users import api_keys
from tests.support import doctored
from tests.support.doctored import ACTOR, findings, keys, only
from tests.support.environment import ENGINE
from tests.support.tampering import age, plant

DAY = 86_400
embedded = pytest.mark.skipif(ENGINE == "mysql", reason="about files")


@pytest.fixture(autouse=True)
def healthy(make_node: Callable[..., str]) -> Iterator[Broker]:
    """Two nodes, a live broker with a worker, and keys that fit."""
    capacity = {"capacity_gb": 100} if ENGINE == "mysql" else {}
    make_node("main", **capacity)
    make_node("failure", kind="failure", **capacity)
    tasks.connect()
    with doctored.live_broker() as broker:
        yield broker


def set_config(monkeypatch: pytest.MonkeyPatch, module: Any, **settings: Any) -> None:
    """Change settings as one module sees them."""
    monkeypatch.setattr(module, "config", replace(config, **settings))


def change_node(name: str = "main", **columns: Any) -> None:
    """Change a node in metadata without any check."""
    DbNode.objects.filter(name=name).update(**columns)
    snapshot.evict()


def test_nothing_is_found_on_a_healthy_installation() -> None:
    report = diagnosis.examine(actor=ACTOR)
    assert (report.findings, report.exit_code) == ((), 0)
    assert report.checks > 25


def test_who_is_no_administrator_may_not_run_it() -> None:
    with pytest.raises(Forbidden):
        diagnosis.examine(actor=Actor(kind="key", name="k", rights={"admin": ["orders*"]}))


# The doctor itself


def test_errors_come_first_and_decide_the_exit_code() -> None:
    warning = finding("no_recipient", SubjectKind.ALARM)
    error = finding("no_broker", SubjectKind.BROKER)
    checks = [Check("a", lambda: [warning]), Check("b", lambda: [error])]
    assert checkup.run_checks(checks) == [error, warning]
    assert Report((warning,), 1).exit_code == 1
    assert Report((error, warning), 2).exit_code == 2


def test_a_check_that_fails_is_a_finding_and_keeps_what_it_found() -> None:
    def fail() -> Iterator[Any]:
        yield finding("no_broker", SubjectKind.BROKER)
        raise OSError("no such thing")

    found = checkup.run_checks(
        [Check("fails", fail), Check("a", lambda: [finding("no_node", SubjectKind.NODE)])]
    )
    assert {one.key for one in found} == {"no_broker", "check_failed", "no_node"}
    assert "OSError('no such thing')" in next(
        one.cause for one in found if one.key == "check_failed"
    )


def test_a_check_that_hangs_is_a_finding_and_hides_no_other() -> None:
    release = threading.Event()

    def hang() -> list[Any]:
        release.wait(60)
        return []

    checks = [
        Check("hangs", hang, limit_s=0.2),
        Check("a", lambda: [finding("no_broker", SubjectKind.BROKER)]),
    ]
    try:
        found = checkup.run_checks(checks)
    finally:
        release.set()
    assert {one.key for one in found} == {"no_broker", "check_timeout"}
    assert {one.cause for one in found if one.key == "check_timeout"} == {
        "The check hangs did not end within 0.2 s."
    }


def test_it_runs_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = []

    def examine_again() -> list[Any]:
        with pytest.raises(NodeUnavailable) as refusal:
            diagnosis.examine(actor=ACTOR)
        refusals.append(refusal.value.code)
        return []

    again = [Check("again", examine_again)]
    monkeypatch.setattr(site_checks, "list_checks", lambda: again)
    assert keys() == []
    assert refusals == ["busy"]


# Nodes


def test_no_node(healthy: Broker) -> None:
    DbNode.objects.all().delete()
    snapshot.evict()
    only("no_node")


def test_no_retry_node() -> None:
    DbNode.objects.filter(name="failure").delete()
    snapshot.evict()
    only("no_retry_node")


def test_a_node_that_is_offline_is_not_examined() -> None:
    change_node(state="offline", host="127.0.0.1", port=1, database="nowhere")
    assert only("node_offline").name == "main"


def test_a_node_that_cannot_be_reached(tmp_path: Path) -> None:
    change_node(database=str(tmp_path) if ENGINE == "sqlite" else "nowhere")
    finding = only("away")
    assert (finding.name, finding.severity) == ("main", "error")


def test_data_of_another_node() -> None:
    change_node(identity="0" * 36)
    only("foreign")


def test_a_quarantined_node() -> None:
    change_node(quarantined="its data is older than what was served")
    assert "older than what was served" in only("quarantined").cause


@pytest.fixture
def queue() -> int:
    """A queue on node `main`."""
    created = topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    return int(created.queues[0].queue.queue)


def test_tables_of_a_later_release(queue: int) -> None:
    later = schema_steps.VERSION + 1
    plant(queue, f"UPDATE node_identity SET schema_version = {later}")
    only("new_schema")


def test_tables_that_this_release_may_not_use(queue: int) -> None:
    plant(queue, "UPDATE node_identity SET min_release = '999.0'")
    only("misfit")


def test_a_wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    later = database_now() + timedelta(hours=1)
    monkeypatch.setattr(preflight, "database_now", lambda: later)
    clocks = findings()
    assert {finding.key for finding in clocks} == {"wrong_clock"}
    assert clocks[0].remedy == "Synchronize both clocks with NTP."


@pytest.mark.parametrize(("free", "key"), [(5, "disk_full"), (15, "disk_low")])
def test_a_disk_without_space(monkeypatch: pytest.MonkeyPatch, free: int, key: str) -> None:
    monkeypatch.setattr(disks, "measure", lambda *_: Space(100, free))
    assert keys() == [key, key]


def test_a_disk_that_will_be_full_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    node = DbNode.objects.get(name="main")
    for days, size in ((1, 0), (0, 10**9)):
        at = database_now() - timedelta(days=days)
        NodeSize.objects.create(node=node, at=at, bytes=size, tables=1)
    space = Space(10 * 10**9, 4 * 10**9)
    monkeypatch.setattr(disks, "measure", lambda *_: space)
    # 4 GB are free, of which 1 GB must stay free, and it grows by 1 GB a day.
    assert only("disk_filling").cause.startswith("It will be full in 3.0 days")


def test_delayed_messages_that_are_late(queue: int) -> None:
    message = NewMessage(body=b"later", delay_ms=3_600_000)
    publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)
    assert keys() == []
    earlier = {
        "sqlite": "due_at - 7200000",
        "mysql": "due_at - INTERVAL 2 HOUR",
    }
    plant(queue, f"UPDATE delayed_message SET due_at = {earlier[ENGINE]}")
    assert "Delayed messages and retries of 1 queues" in only("delayed_overdue").cause


# Metadata


def test_metadata_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise MetadataUnavailable.no_answer()

    monkeypatch.setattr(snapshot, "refresh", fail)
    assert only("metadata_away").severity == "error"


def test_migrations_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    last = max(
        name
        for app, name in MigrationRecorder.Migration.objects.values_list("app", "name")
        if app == "metadata"
    )
    row = MigrationRecorder.Migration.objects.get(app="metadata", name=last)
    row.delete()
    try:
        assert last in only("migrations_missing").cause
    finally:
        MigrationRecorder.Migration.objects.create(app="metadata", name=last)


def test_migrations_of_a_later_release() -> None:
    later = MigrationRecorder.Migration.objects.create(app="metadata", name="9999_later")
    try:
        assert "9999_later" in only("migrations_unknown").cause
    finally:
        later.delete()


def test_metadata_that_grew_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_checks, "LARGE_BYTES", 1)
    only("metadata_large")


@embedded
def test_a_full_disk_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, metadata_checks, min_free_percent=101)
    assert str(config.data_dir) in only("metadata_disk").cause


def test_another_isolation_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration_state, "read_isolation", lambda: "REPEATABLE-READ")
    assert "REPEATABLE-READ" in only("isolation").cause


# Brokers


def test_no_live_broker(healthy: Broker) -> None:
    now = database_now()
    Broker.objects.update(stopped_at=now, last_seen=now - timedelta(minutes=1))
    only("no_broker")


def test_a_broker_that_was_killed() -> None:
    now = database_now()
    Broker.objects.create(
        name="b2", url="http://b2", started_at=now, last_seen=now - timedelta(minutes=5)
    )
    discovery.evict()
    lost = only("broker_lost")
    assert lost.name == "b2"
    assert lost.remedy.endswith("or remove it: catmq broker forget b2.")


def test_a_broker_whose_address_does_not_answer(healthy: Broker) -> None:
    Broker.objects.update(url="http://127.0.0.1:1")
    only("broker_away")


def test_a_broker_of_an_older_release_beside_one_of_this_release(healthy: Broker) -> None:
    with doctored.live_broker("b2", version="0.0.1"):
        found = {one.key: one.name for one in findings()}
    assert found == {"versions_differ": "", "version_old": "b2"}


def test_a_worker_that_has_not_loaded_the_last_change(healthy: Broker) -> None:
    BrokerProcess.objects.update(acknowledged=-1)
    assert "b1/1" in only("snapshot_late").cause


def test_a_limit_of_open_files_below_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, site_checks, process="broker", threads=10**7)
    only("files_limit")


# Jobs


def test_no_job_has_run_since_the_broker_started(healthy: Broker) -> None:
    Broker.objects.update(started_at=database_now() - timedelta(minutes=30))
    only("jobs_silent")


def test_a_job_that_does_not_begin_any_more(healthy: Broker) -> None:
    now = database_now()
    Broker.objects.update(started_at=now - timedelta(days=9))
    for name in runs.scheduled_jobs():
        begun_at = now - timedelta(hours=5) if name == "expire_messages" else now
        JobRun.objects.create(name=name, state="done", started_at=begun_at)
    late = only("job_late")
    assert (late.name, late.cause) == (
        "expire_messages",
        "It last began 300 minutes ago, and is due every 10 minutes.",
    )


def test_a_job_that_fails() -> None:
    now = database_now()
    for _ in range(2):
        JobRun.objects.create(
            name="expire_messages", state="failed", started_at=now, detail="OSError: no"
        )
    assert only("job_failed").cause == "Its last run failed: OSError: no."


# Keys


def test_keys_of_another_installation() -> None:
    KeyFingerprint.objects.update(fingerprint="0" * 32)
    only("foreign_keys")


def test_a_signing_key_that_is_old() -> None:
    rows = KeyFingerprint.objects.filter(purpose="signing")
    rows.update(noted_at=database_now() - timedelta(days=400))
    assert only("old_secret").name == "signing"


def test_former_signing_keys_that_are_still_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    KeyFingerprint.objects.update(noted_at=database_now() - timedelta(days=3))
    set_config(monkeypatch, site_checks, secret_key_fallbacks=("x" * 40,))
    only("former_keys")


def test_an_api_key_that_is_old() -> None:
    api_keys.create(name="shop", rights={"produce": ["orders"]}, actor=ACTOR)
    assert keys() == []
    ApiKey.objects.update(created_at=database_now() - timedelta(days=500))
    old = only("old_key")
    assert (old.name, old.values["days"], old.values["rights"]) == ("shop", 500, "produce")


@pytest.mark.parametrize("name", ["secret.key", "encryption.key", "credentials.env"])
def test_a_secret_that_others_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("secret")
    (tmp_path / name).chmod(0o600)
    set_config(monkeypatch, site_checks, data_dir=tmp_path)
    assert keys() == []
    (tmp_path / name).chmod(0o640)
    assert only("secret_readable").name == name


def test_java_clients_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, site_checks, java_networks=("10.0.0.0/8",))
    only("java_open")


def test_debug_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, site_checks, debug=True)
    only("debug_on")


# Alarms


def test_nobody_is_notified_although_others_use_it(healthy: Broker) -> None:
    with doctored.live_broker("b2", url="https://mq.example.invalid"):
        assert keys() == ["broker_away", "no_recipient"]


def test_active_alarms_without_a_recipient() -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="many")
    assert keys() == ["alarm_active", "alarm_unheard"]
    alarms.acknowledge(kind="lag", name="billing/orders", actor=ACTOR)
    assert keys() == ["alarm_unheard"]


def test_recipients_without_a_mail_server(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(monkeypatch, site_checks, alarm_emails=("ops@example.org",), smtp_url="")
    only("no_mail_server")


def test_mails_that_cannot_be_sent() -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="many")
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    AlarmMail.objects.create(
        alarm=Alarm.objects.get(),
        occurrence=1,
        what="ended",
        address="ops@example.org",
        made_at=database_now(),
        error="connection refused",
    )
    assert "connection refused" in only("mail_failing").cause


# Retention


def test_retention_that_does_not_keep_up(queue: int) -> None:
    topic_rows.update(name="orders", settings={"retention_days": 2}, actor=ACTOR)
    snapshot.refresh()
    messages = [NewMessage(body=b"m") for _ in range(3)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    age(queue, 0, 3, seconds=int(2.5 * DAY))
    assert keys() == []  # a pass may be due
    age(queue, 0, 3, seconds=10 * DAY)
    if ENGINE == "sqlite":  # a server drops whole partitions: see the test there
        late = only("retention_behind")
        assert (late.name, late.values["kept"]) == ("orders", 2)
