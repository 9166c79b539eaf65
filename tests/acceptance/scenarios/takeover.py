"""A consumer is killed with -9: another one takes its queues over in time, at the committed
offset.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.logs import Log, await_messages
from tests.support.waiting import until

QUEUES = 4
SESSION_MS = 2_000
# from the kill to the survivor's first message of each queue
LIMIT_S = SESSION_MS / 1000 + 3


@dataclass
class Takeover:
    """What is seen of a group after one of its consumers died."""

    stage: Stage
    group: str
    lost: set[int]  # the dead one's queues
    alive: Log
    # queue → offset, read before the takeover
    committed: dict[int, int] = field(default_factory=dict)

    def done(self) -> bool:
        """Whether the survivor has printed a message of each lost queue."""
        before = {
            row["queue"]: row["committed"]
            for row in self.stage.terminal.admin.lag(self.group)["queues"]
        }
        taken = self.alive.first_offsets().keys() & self.lost
        self.committed.update({queue: before[queue] for queue in self.lost - taken})
        return taken == self.lost

    def gone_on_at(self) -> dict[int, int]:
        """Lost queue → the first offset that the survivor printed."""
        return {
            queue: offset
            for queue, offset in self.alive.first_offsets().items()
            if queue in self.lost
        }


def run(stage: Stage, *, source: Path, batch: int = 50) -> str:
    """Kills one of two `catmq consume` while a stream comes in; the verdict, with the time
    it took.
    """
    count = len(events(source))
    topic, group = stage.fresh("taken-over"), stage.fresh("pair")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    stage.terminal.run("group", "create", group, "--session-timeout-ms", str(SESSION_MS))
    (victim, survivor), (dead, alive) = stage.consumers(topic, group, "victim", "survivor")
    words = ["--key-field", "path", "--file", str(source), "--batch", str(batch)]
    sender = stage.terminal.catmq("send", topic, *words, name=topic)
    until(
        lambda: any(row["committed"] for row in stage.terminal.admin.lag(group)["queues"]),
        limit_s=60,
    )
    dead.wait_for(len(dead.follow()) + stage.rng.randrange(1, count // 20))
    victim.kill()
    killed_at = time.monotonic()
    seen = Takeover(stage, group, set(dead.next_offsets()), alive)
    assert seen.lost and seen.lost.isdisjoint(alive.first_offsets())
    stage.say(f"killed after {len(dead.lines)} lines; its queues: {sorted(seen.lost)}")
    until(seen.done, limit_s=60, every_s=0.05)
    took_s = time.monotonic() - killed_at
    assert seen.gone_on_at() == seen.committed
    assert took_s <= LIMIT_S, f"taken over after {took_s:.2f} s, the limit is {LIMIT_S} s"
    sender.wait()
    await_messages([dead, alive], count)
    survivor.end()
    verdict = (
        f"taken over {took_s:.2f} s after the kill; "
        f"{stage.check_stream([dead, alive], source)}"
    )
    stage.say(verdict)
    return verdict
