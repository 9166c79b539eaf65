"""A consumer is killed with -9: another one takes its queues over in time, at the committed offset."""

from __future__ import annotations

import time
from pathlib import Path

from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.logs import Log, await_messages
from tests.support.waiting import until

QUEUES = 4
SESSION_MS = 2_000
LIMIT_S = SESSION_MS / 1000 + 3  # from the kill to the survivor's first message of each queue


def run(stage: Stage, *, source: Path) -> str:
    """Kills one of two `catmq consume` in the middle of its work; the verdict, with the time it took."""
    count = len(events(source))
    topic, group = stage.fresh("taken-over"), stage.fresh("pair")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    stage.terminal.run("group", "create", group, "--session-timeout-ms", str(SESSION_MS))
    (victim, survivor), (dead, alive) = stage.consumers(topic, group, "victim", "survivor")
    sender = stage.terminal.catmq("send", topic, "--key-field", "path", "--file", str(source), name=topic)
    dead.wait_for(stage.rng.randrange(1, count // 10))
    victim.kill()
    killed_at = time.monotonic()
    committed = settled(stage, group)
    sender.wait()
    lost = set(dead.next_offsets())
    assert lost and lost.isdisjoint(alive.first_offsets())
    stage.say(f"killed after {len(dead.lines)} lines; its queues: {sorted(lost)}")
    until(lambda: lost <= alive.first_offsets().keys(), limit_s=60)
    took = time.monotonic() - killed_at
    first = {queue: offset for queue, offset in alive.first_offsets().items() if queue in lost}
    assert first == {queue: committed[queue] for queue in lost}, f"{first}, committed {committed}"
    assert took <= LIMIT_S, f"taken over after {took:.2f} s, the limit is {LIMIT_S} s"
    verdict = finish(stage, [dead, alive], source, count)
    survivor.end()
    return f"taken over {took:.2f} s after the kill; {verdict}"


def settled(stage: Stage, group: str) -> dict[int, int]:
    """Queue → committed offset, once a commit that was under way at the kill has landed."""
    seen: list[dict[int, int]] = []

    def twice() -> bool:
        rows = stage.terminal.admin.lag(group)["queues"]
        seen.append({row["queue"]: row["committed"] for row in rows})
        return len(seen) > 1

    until(twice)
    return seen[-1]


def finish(stage: Stage, logs: list[Log], source: Path, count: int) -> str:
    """Waits for the rest of the messages and judges."""
    await_messages(logs, count)
    verdict = stage.check_stream(logs, source)
    stage.say(verdict)
    return verdict
