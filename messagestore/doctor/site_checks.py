"""Checks of brokers, scheduled jobs, keys, alarms, and the retention of topics."""

from __future__ import annotations

import http.client
import resource
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from messagestore.doctor.checkup import Check
from messagestore.doctor.findings import Finding, SubjectKind, finding
from messagestore.engine import db_errors
from messagestore.pool import session_pool
from messagestore.retention import planning
from messagestore.tables import node_sql
from metadata.actors import job
from metadata.brokers import discovery, fingerprints, snapshot_acks
from metadata.brokers.discovery import BrokerView
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable
from metadata.errors import CatmqError
from metadata.jobs import runs
from metadata.monitoring import alarms, health_checks, mails
from metadata.release import VERSION, is_older
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import stored_facts
from metadata.rules.nodes import NodeState
from metadata.rules.tls import is_local
from metadata.rules.topics.states import STATES_WITHOUT_TABLE
from metadata.topics import topic_rows
from metadata.users import api_keys

READER = job("doctor")
HTTP_TIMEOUT_S = 2.0
SNAPSHOT_PATIENCE_S = 3.0  # time in which workers load a change; usually 0.2 s
# A job is late after two intervals and this pause, which covers a restart and a busy queue.
LATE_SLACK_MINUTES = 10
SILENT_MINUTES = 5  # the most frequent job runs each minute
OLD_KEY_DAYS = 365
FORMER_KEY_DAYS = 2  # a login lasts 12 h
RETENTION_SLACK_DAYS = 1.0
SPARE_FILES = 100  # of a worker, for databases, logs and metrics
DAY_MS = 86_400_000
MAX_NAMES = 8


def list_checks() -> list[Check]:
    """Return the checks of everything but databases."""
    return [
        Check("brokers", check_brokers),
        *(
            Check(f"broker {broker.name}", partial(check_broker, broker))
            for broker in discovery.list_brokers(actor=READER)
            if broker.alive
        ),
        Check("brokers: snapshots", check_snapshots),
        Check("keys of this process", check_process_keys),
        Check("API keys", check_api_keys),
        Check("files", check_files),
        Check("jobs", check_jobs),
        Check("failed jobs", check_failed_jobs),
        Check("recipients of alarms", check_recipients),
        Check("alarms", check_alarms),
        Check("retention", check_retention),
    ]


def check_brokers() -> Iterator[Finding]:
    """Check that brokers are alive, ended in order, and have the same version."""
    brokers = discovery.list_brokers(actor=READER)
    live_brokers = [broker for broker in brokers if broker.alive]
    if not live_brokers:
        yield finding("no_broker", SubjectKind.BROKER)
    with reachable():
        now_ms = ms(database_now())
    for broker in brokers:
        if not broker.alive and broker.stopped_at_ms is None:
            seconds = (now_ms - broker.last_seen_at_ms) // 1000
            values = {"seconds": seconds, "broker": broker.name}
            yield finding("broker_lost", SubjectKind.BROKER, broker.name, **values)
    versions = sorted({broker.version for broker in live_brokers})
    if len(versions) > 1:
        text = ", ".join(version or "?" for version in versions)
        yield finding("versions_differ", SubjectKind.BROKER, versions=text)


def check_broker(broker: BrokerView) -> Iterator[Finding]:
    """Check the version of a live broker, and that its address answers."""
    if broker.version and is_older(broker.version, VERSION):
        values = {"version": broker.version, "own": VERSION}
        yield finding("version_old", SubjectKind.BROKER, broker.name, **values)
    url = urlsplit(broker.url)
    is_encrypted = url.scheme == "https"
    address = (url.hostname or "", url.port or (443 if is_encrypted else 80))
    try:
        if is_encrypted:
            # Its certificate may be from a CA that only clients know.
            socket.create_connection(address, timeout=HTTP_TIMEOUT_S).close()
            return
        connection = http.client.HTTPConnection(*address, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", f"{url.path.rstrip('/')}/livez")
            connection.getresponse().read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        values = {"url": broker.url, "reason": str(error) or type(error).__name__}
        yield finding("broker_away", SubjectKind.BROKER, broker.name, **values)


def check_snapshots() -> Iterator[Finding]:
    """Check that all workers load the last change of metadata soon."""
    _, change = snapshot.current().version
    deadline = time.monotonic() + SNAPSHOT_PATIENCE_S
    while late_workers := snapshot_acks.find_late_workers(change):
        if time.monotonic() >= deadline:
            names = ", ".join(late_workers[:MAX_NAMES])
            values = {"workers": names, "seconds": SNAPSHOT_PATIENCE_S}
            yield finding("snapshot_late", SubjectKind.BROKER, **values)
            return
        time.sleep(0.2)


def check_process_keys() -> Iterator[Finding]:
    """Check the signing and encryption keys of this process, and settings that open it."""
    if mismatch := fingerprints.find_mismatch():
        yield finding("foreign_keys", SubjectKind.KEY, reason=mismatch)
    for purpose, days in fingerprints.list_ages():
        if days > OLD_KEY_DAYS:
            values = {"purpose": purpose, "days": days}
            yield finding("old_secret", SubjectKind.KEY, purpose, **values)
        if (
            purpose == fingerprints.SIGNING
            and config.secret_key_fallbacks
            and days > FORMER_KEY_DAYS
        ):
            former = {"count": len(config.secret_key_fallbacks), "days": days}
            yield finding("former_keys", SubjectKind.KEY, **former)
    if config.java_networks and not config.java_key:
        networks = ", ".join(config.java_networks)
        yield finding("java_open", SubjectKind.KEY, networks=networks)
    if config.debug:
        yield finding("debug_on", SubjectKind.KEY)


def check_api_keys() -> Iterator[Finding]:
    for key, days in api_keys.list_ages():
        if days > OLD_KEY_DAYS:
            rights = ", ".join(sorted(key.rights))
            values = {"days": days, "rights": rights, "key": key.name}
            yield finding("old_key", SubjectKind.KEY, key.name, **values)


def check_files() -> Iterator[Finding]:
    """Check who may read the files with secrets, and the limit of open files."""
    for name in ("secret.key", "encryption.key", "credentials.env"):
        path = config.data_dir / name
        with suppress(FileNotFoundError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                yield finding("secret_readable", SubjectKind.KEY, name, path=str(path))
    # A command has the limit of its shell, which says nothing about the brokers.
    if config.process == "broker":
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = config.threads + SPARE_FILES
        if limit < needed:
            values = {"limit": limit, "needed": needed, "threads": config.threads}
            yield finding("files_limit", SubjectKind.BROKER, **values)


def check_jobs() -> Iterator[Finding]:
    """Check that scheduled jobs begin at their intervals."""
    started_at_ms = runs.last_starts()
    live_since_ms = [
        broker.started_at_ms
        for broker in discovery.list_brokers(actor=READER)
        if broker.alive
    ]
    with reachable():
        now_ms = ms(database_now())
    # An installation that was just started, or has never run a job, is not late yet.
    up_since_ms = min(live_since_ms, default=now_ms)
    newest_ms = max(started_at_ms.values(), default=0)
    silent_minutes = (now_ms - max(newest_ms, up_since_ms)) // 60_000
    if silent_minutes >= SILENT_MINUTES:
        yield finding("jobs_silent", SubjectKind.JOB, minutes=silent_minutes)
        return
    for name, scheduled in sorted(runs.scheduled_jobs().items()):
        began_ms = max(started_at_ms.get(name, 0), up_since_ms)
        minutes = (now_ms - began_ms) // 60_000
        if minutes > 2 * scheduled.every_minutes + LATE_SLACK_MINUTES:
            values = {"minutes": minutes, "every": scheduled.every_minutes}
            yield finding("job_late", SubjectKind.JOB, name, **values)


def check_failed_jobs() -> Iterator[Finding]:
    every_minutes = {
        name: scheduled.every_minutes for name, scheduled in runs.scheduled_jobs().items()
    }
    for name, detail in health_checks.find_failed_jobs(every_minutes).active.items():
        facts = stored_facts(detail) or {"values": {}}
        reason = str(facts["values"].get("error", detail))
        values = {"reason": reason.rstrip("."), "job": name}
        yield finding("job_failed", SubjectKind.JOB, name, **values)


def check_recipients() -> Iterator[Finding]:
    """Check that alarms have recipients.

    Without recipients that is a finding only if others use the installation: who tries it
    on the own machine sees the alarms there.
    """
    is_shared = any(
        not is_local(urlsplit(broker.url).hostname or "")
        for broker in discovery.list_brokers(actor=READER)
        if broker.alive
    )
    if not config.alarm_emails and is_shared:
        yield finding("no_recipient", SubjectKind.ALARM)
    names = mails.list_unheard_alarms()
    if names:
        text = ", ".join(names[:MAX_NAMES])
        yield finding("alarm_unheard", SubjectKind.ALARM, count=len(names), names=text)
    if config.alarm_emails and not config.smtp_url:
        yield finding("no_mail_server", SubjectKind.ALARM)
    state = mails.read_mail_state()
    if state.waiting and state.error:
        values = {"count": state.waiting, "reason": state.error.rstrip(".")}
        yield finding("mail_failing", SubjectKind.ALARM, **values)


def check_alarms() -> Iterator[Finding]:
    """Report the active alarms that are not acknowledged, one finding for each kind."""
    for kind, names in sorted(alarms.list_unacknowledged().items()):
        # A failed job is a finding of its own, with its reason.
        if kind != AlarmKind.JOB_FAILED:
            text = ", ".join(names[:MAX_NAMES])
            yield finding("alarm_active", SubjectKind.ALARM, kind, kind=kind, names=text)


def check_retention() -> Iterator[Finding]:
    """Check that messages are deleted soon after the retention of their topic.

    A message that is kept for another reason, such as an active group that has not read it,
    is not late: only what a retention pass would delete now counts.
    """
    queues_by_topic = _list_overdue_queues()
    for topic in topic_rows.list_ready():
        overdue = queues_by_topic.get(topic.name)
        if not overdue:
            continue
        plans = planning.plan(topic, record=False, jumped=None)
        removable = {plan.queue for plan in plans if plan.keep_from > plan.low}
        late_days = [days for queue, days in overdue.items() if queue in removable]
        if late_days:
            values = {
                "queues": len(late_days),
                "days": max(late_days),
                "kept": topic.retention_days,
            }
            yield finding("retention_behind", SubjectKind.TOPIC, topic.name, **values)


def _list_overdue_queues() -> dict[str, dict[int, float]]:
    """Return {topic: {queue: days by which its first message is older than it should be}}.

    Queues of nodes that do not answer are left out.
    """
    current = snapshot.current()
    overdue: dict[str, dict[int, float]] = {}
    for node in current.nodes.values():
        if node.state == NodeState.OFFLINE:
            continue
        queues = [
            queue
            for queue in current.queues.values()
            if queue.node_id == node.id and queue.state not in STATES_WITHOUT_TABLE
        ]
        with (
            suppress(CatmqError, db_errors.Final),
            session_pool.direct(node, any_schema=True, read_timeout_s=3) as session,
        ):
            figures = node_sql.read_figures(session)
            places = [
                (queue.id, figures.bounds[queue.id][1])
                for queue in queues
                if queue.id in figures.bounds
            ]
            stored_times = dict(node_sql.read_stored_times(session, places=places))
            for (queue_id, _), stored_ms in stored_times.items():
                topic = current.topics.get(current.queues[queue_id].topic_id)
                if topic is None or stored_ms is None or not topic.retention_days:
                    continue
                age_days = (figures.now_ms - stored_ms) / DAY_MS
                late_days = age_days - topic.retention_days
                if late_days > RETENTION_SLACK_DAYS:
                    overdue.setdefault(topic.name, {})[queue_id] = late_days
    return overdue
