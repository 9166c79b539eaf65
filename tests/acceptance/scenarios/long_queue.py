"""One queue gets many messages: partitions are made ahead of it, read through, and dropped
behind it.
"""

from __future__ import annotations

import json

from tests.acceptance.scenarios.stage import Stage
from tests.support.logs import Log
from tests.support.pair import Pair
from tests.support.waiting import until

AHEAD = 3  # partitions that end above the head
MORE = 1_000  # messages that are sent after the old ones are gone
LEAST_BYTES = 1 << 20  # the smallest limit: only the current partition is kept
FIRST_END = 100_000  # of the first partition


def run(stage: Stage, pair: Pair, *, messages: int) -> None:
    """Sends, reads, cleans, sends and reads again, and verifies.

    The group gets each message once, in the order of sending.
    """
    assert messages > FIRST_END, "no partition would be left behind"
    more = range(messages, messages + MORE)
    topic, group = stage.fresh("long"), stage.fresh("reader")
    stage.terminal.run("topic", "create", topic, "--queues", "1")
    queue = stage.terminal.admin.topic(topic)["queues"][0]["queue"]
    send(stage, topic, range(messages))
    read(stage, topic, group, range(messages))
    await_ahead(pair, queue, messages)
    before = len(ends(pair, queue))
    stage.terminal.admin.change_topic(topic, retention_bytes=LEAST_BYTES)
    until(lambda: clean(stage, pair, topic) >= FIRST_END, limit_s=120)
    low, left = clean(stage, pair, topic), ends(pair, queue)
    assert left[0] > low and len(left) < before, (
        f"partitions {left} of {before}, messages from {low} on"
    )
    send(stage, topic, more)
    read(stage, topic, group, more)
    await_ahead(pair, queue, more.stop)
    verdict = pair.first.manage("verify", topic, "--digests").strip().splitlines()[-1]
    stage.say(
        f"{more.stop:,} messages went through one queue in order, each once; {before} partitions, "
        f"{before - len(left)} dropped; verify: {verdict}"
    )


def send(stage: Stage, topic: str, numbers: range) -> None:
    """Sends the numbers in order."""
    source = stage.directory / f"{topic}-{numbers.start}.jsonl"
    source.write_text("".join(f'{{"number": {number}}}\n' for number in numbers))
    sender = stage.terminal.catmq("send", topic, "--file", str(source), "--batch", "500")
    sender.wait(limit_s=1200)
    stage.say(sender.err.read_text().strip().rpartition("\n")[2])


def read(stage: Stage, topic: str, group: str, numbers: range) -> None:
    """The group reads exactly these numbers, at offsets that are the numbers."""
    name = f"{group}-{numbers.start}"
    reader = stage.terminal.consume(topic, group, "--idle-timeout", "10", name=name)
    reader.wait(limit_s=1200)
    seen = [
        (line["offset"], json.loads(line["body"])["number"])
        for line in Log(reader.out).follow()
    ]
    wrong = [
        place
        for place, number in zip(seen, numbers, strict=False)
        if place != (number, number)
    ]
    assert not wrong and len(seen) == len(numbers), (
        f"{len(seen)} read, out of order: {wrong[:5]}"
    )


def clean(stage: Stage, pair: Pair, topic: str) -> int:
    """Cleans the topic; its log start offset. The server tells sizes of partitions a few
    seconds late.
    """
    stage.say(pair.first.manage("cleanup", "--topic", topic).strip().replace("\n", " | "))
    return stage.terminal.admin.topic(topic)["queues"][0]["low"] or 0


def await_ahead(pair: Pair, queue: int, head: int) -> None:
    """Waits until enough partitions end above the head."""
    until(lambda: sum(end > head for end in ends(pair, queue)) >= AHEAD, limit_s=90)


def ends(pair: Pair, queue: int) -> list[int]:
    """The ends of the queue's partitions, rising."""
    rows = pair.nodes.execute(
        "SELECT CAST(PARTITION_DESCRIPTION AS UNSIGNED) FROM information_schema.PARTITIONS "
        "WHERE TABLE_SCHEMA IN %s AND TABLE_NAME = %s ORDER BY 1",
        (pair.schemas, f"message_{queue}"),
    )
    return [int(row[0]) for row in rows]
