"""Handlers fail at 30 % of what they get, while a worker and the broker are killed with -9.

Each event is handled in the end, and no copy lies in the failure topic twice.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.environment import ROOT
from tests.support.logs import Log, await_count
from tests.support.waiting import until

WORKER = ROOT / "tests" / "acceptance" / "programs" / "failing_worker.py"
QUEUES = 4
SESSION_MS = 2_000
PERCENT = 30


def run(stage: Stage, *, source: Path) -> str:
    """Two workers at once; one is killed, then the broker; the verdict."""
    seqs = {json.loads(line)["seq"] for line in source.read_text().splitlines()}
    assert len(seqs) == len(events(source))
    topic, group = stage.fresh("fails"), stage.fresh("failing")
    admin = stage.terminal.admin
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    stage.terminal.run("group", "create", group, "--session-timeout-ms", str(SESSION_MS))
    stage.terminal.run("subscribe", group, topic)
    admin.change_subscription(group, topic, retry_delays_s=[1])
    stage.terminal.run("send", topic, "--key-field", "path", "--file", str(source))
    log = Log(stage.directory / f"{group}.log")
    log.path.touch()
    names = iter(range(1000))

    def begin() -> Any:
        words = [str(WORKER), group, topic, str(log.path), str(PERCENT)]
        return stage.terminal.start(*words, name=f"{group}-{next(names)}")

    workers = [begin(), begin()]
    await_count(lambda: len(handled(log)), len(seqs) // 4)
    workers.pop(0).kill()
    stage.say(f"killed a worker after {len(handled(log))} of {len(seqs)} events")
    workers.append(begin())
    await_count(lambda: len(handled(log)), len(seqs) // 2)
    stage.server.restart_broker(signal.SIGKILL)
    stage.say(f"killed the broker after {len(handled(log))} of {len(seqs)} events")
    await_count(lambda: len(handled(log)), len(seqs))
    until(lambda: not admin.lag(group)["lag"], limit_s=60, every_s=0.2)
    for worker in workers:
        worker.end()
    verdict = judge(stage, log, seqs, failure_topic=f"{group}_{topic}_fail")
    stage.say(verdict)
    return verdict


def handled(log: Log) -> set[int]:
    """The events that a handler came back from."""
    return {line["seq"] for line in log.follow()}


def judge(stage: Stage, log: Log, seqs: set[int], *, failure_topic: str) -> str:
    """Checks that all events were handled, and that each copy was made once."""
    assert handled(log) == seqs
    copies = Counter(
        (json.loads(message["body_bytes"])["seq"], message["attempt"])
        for message in everything(stage, failure_topic)
    )
    doubled = [copy for copy, count in copies.items() if count > 1]
    assert not doubled, f"{len(doubled)} copies lie there twice: {doubled[:5]}"
    firsts = sum(attempt == 1 for _, attempt in copies)
    assert firsts > len(seqs) * PERCENT // 200, f"only {firsts} events failed"
    most = max(attempt for _, attempt in copies)
    repeats = len(log.lines) - len(seqs)
    return (
        f"OK: {len(seqs)} events handled, {repeats} repeated, {len(copies)} retries, at "
        f"most {most} of one"
    )


def everything(stage: Stage, topic: str) -> list[dict[str, Any]]:
    """All messages of a topic."""
    admin = stage.terminal.admin
    found: list[dict[str, Any]] = []
    for queue in admin.topic(topic)["queues"]:
        for offset in range(0, queue["head"] or 0, 1_000):
            found += admin.messages(topic, queue=queue["queue"], offset=offset, limit=1_000)
    return found
