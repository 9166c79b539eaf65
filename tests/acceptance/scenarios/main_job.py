"""The main job: a stream is sent by key, two consumers of a group share it, every event
arrives in order.
"""

from __future__ import annotations

import signal
from pathlib import Path

from tests.acceptance.scenarios.stage import Stage, check_receipts
from tests.support.changes import events
from tests.support.logs import Log, await_messages

QUEUES = 4
# exit code of `catmq consume` whose fellow had handled the backlog before it was up
NOTHING_CAME = 3
SESSION_TIMEOUT_MS = 6_000  # longer than a broker is away, and a test can wait for it
MIN_SHARE = 10  # per cent of the events that each consumer has to handle


def run(stage: Stage, *, source: Path, batch: int = 500) -> str:
    """Plays it with two consumers that wait when sending begins; the verdict."""
    topic, group = stage.fresh("changes"), stage.fresh("check")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    consumers, logs = stage.consumers(topic, group, "a", "b")
    send(stage, topic, source, batch)
    count = len(events(source))
    await_messages(logs, count)
    for consumer in consumers:
        consumer.end()
    assert stage.stored(topic) == count
    verdict = stage.check_stream(logs, source, "--min-share", str(MIN_SHARE))
    stage.say(verdict)
    return verdict


def backlog(stage: Stage, *, source: Path, batch: int = 500) -> str:
    """Plays it the other way round: first everything is sent, then two consumers start at
    once.
    """
    topic, group = stage.fresh("changes"), stage.fresh("check")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    send(stage, topic, source, batch)
    consumers = [
        stage.terminal.consume(topic, group, "--idle-timeout", "5", name=f"{group}-{name}")
        for name in "ab"
    ]
    for consumer in consumers:
        consumer.wait(0, NOTHING_CAME)
    logs = [Log(consumer.out) for consumer in consumers]
    assert stage.stored(topic) == len(events(source))
    verdict = stage.check_stream(logs, source)
    stage.say(verdict)
    return verdict


def with_kills(stage: Stage, *, source: Path, groups: int = 2) -> None:
    """Send a stream to several groups, and kill -9 the broker and a consumer in the middle
    of it.

    Raises AssertionError if an event is lost, stored twice, or not read by a group in the
    order of its key.
    """
    topic, count = stage.fresh("killed"), len(events(source))
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    consumers, logs = [], []
    for group in [stage.fresh("readers") for _ in range(groups)]:
        stage.terminal.run(
            "group", "create", group, "--session-timeout-ms", str(SESSION_TIMEOUT_MS)
        )
        group_consumers, group_logs = stage.consumers(topic, group, "a", "b")
        consumers += group_consumers
        logs.append(group_logs)
    words = [
        "--key-field",
        "path",
        "--file",
        str(source),
        "--batch",
        "10",
        "--output",
        "json",
    ]
    sender = stage.terminal.catmq("send", topic, *words, name=topic)
    receipts = Log(sender.out)
    receipts.wait_for(count // 4)
    victim, *survivors = consumers
    logs[0][0].wait_for(1)
    victim.kill()
    stage.server.restart_broker(signal.SIGKILL)
    assert sender.popen.poll() is None, (
        "everything was sent before the kills: use a longer stream"
    )
    sender.wait()
    receipts.follow()
    for group_logs in logs:
        await_messages(group_logs, count)
        stage.say(stage.check_stream(group_logs, source))
        check_receipts(receipts, group_logs, count)
    for consumer in survivors:
        consumer.end()
    assert stage.stored(topic) == count


def send(stage: Stage, topic: str, source: Path, batch: int) -> None:
    """Sends the file, a message a line, with the path as key."""
    sender = stage.terminal.catmq(
        "send",
        topic,
        "--key-field",
        "path",
        "--file",
        str(source),
        "--batch",
        str(batch),
        name=topic,
    )
    sender.wait(limit_s=1200)
    stage.say(f"--batch {batch}: {sender.err.read_text().strip()}")
