"""The main job: a stream is sent by key, two consumers of a group share it, every event arrives in order."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.logs import Log, await_messages

QUEUES = 4
NOTHING_CAME = 3  # exit code of `catmq consume` whose fellow had handled the backlog before it was up
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
    """Plays it the other way round: first everything is sent, then two consumers start at once."""
    topic, group = stage.fresh("changes"), stage.fresh("check")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    send(stage, topic, source, batch)
    consumers = [
        stage.terminal.consume(topic, group, "--idle-timeout", "5", name=f"{group}-{name}") for name in "ab"
    ]
    for consumer in consumers:
        consumer.wait(0, NOTHING_CAME)
    logs = [Log(consumer.out) for consumer in consumers]
    assert stage.stored(topic) == len(events(source))
    verdict = stage.check_stream(logs, source)
    stage.say(verdict)
    return verdict


def send(stage: Stage, topic: str, source: Path, batch: int) -> None:
    """Sends the file, a message a line, with the path as key."""
    sender = stage.terminal.catmq(
        "send", topic, "--key-field", "path", "--file", str(source), "--batch", str(batch), name=topic
    )
    sender.wait(limit_s=1200)
    stage.say(f"--batch {batch}: {sender.err.read_text().strip()}")
