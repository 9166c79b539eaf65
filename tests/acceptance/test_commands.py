"""`catmq consume` on a real server: however it ends, the next consumer goes on with the
first unprinted line.

Judged by what the processes printed. Groups have the default session timeout of 15 s: a
consumer that did not leave would hold its queues longer than a test waits for the next one.
"""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import termios
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.acceptance.scenarios.stage import Stage
from tests.support.logs import Log, Place, await_messages
from tests.support.terminal import Process
from tests.support.waiting import until

LEFT_S = 10.0  # within which a consumer that follows one that left has its first message
EVENTS = 3_000
PIPE_BYTES = 4096


@dataclass
class Reading:
    """A topic with events in it, and a group to read them."""

    stage: Stage
    topic: str
    group: str

    def consume(self, *more: str, **options: object) -> Process:
        """Starts a consumer of the group."""
        return self.stage.terminal.catmq(
            "consume", self.topic, "--group", self.group, *more, **options
        )

    def rest(self, count: int) -> list[Place]:
        """What the next consumer prints: it begins soon, and ends when it has `count`
        messages.
        """
        begun = time.monotonic()
        process = self.consume("--max", str(count))
        log = Log(process.out)
        log.wait_for(1)
        assert time.monotonic() - begun < LEFT_S
        process.wait()
        return log.places()

    def idle(self) -> None:
        """Nothing is left: a consumer that waits a second ends with exit code 3."""
        process = self.consume("--idle-timeout", "1")
        process.wait(3)
        assert process.out.read_bytes() == b""


@pytest.fixture
def reading(stage: Stage, part: Callable[[int], Path]) -> Reading:
    """A topic of four queues with 3,000 events."""
    made = Reading(stage, stage.fresh("read"), stage.fresh("reader"))
    stage.terminal.run("topic", "create", made.topic, "--queues", "4")
    stage.terminal.run(
        "send", made.topic, "--key-field", "path", "--file", str(part(EVENTS))
    )
    return made


def test_a_consumer_told_to_stop_commits_what_it_printed_and_leaves(
    reading: Reading,
) -> None:
    process = reading.consume()
    log = Log(process.out)
    log.wait_for(100)
    process.end(signal.SIGTERM)
    printed = log.places()
    assert len(printed) < EVENTS, "it was stopped too late to show anything"
    rest = reading.rest(EVENTS - len(printed))
    assert len({*printed, *rest}) == EVENTS
    reading.idle()


def test_a_consumer_whose_reader_goes_away_ends_well_and_leaves(reading: Reading) -> None:
    process = reading.consume(stdout=subprocess.PIPE)
    assert process.popen.stdout is not None
    first = json.loads(process.popen.stdout.readline())
    process.popen.stdout.close()
    process.wait()
    rest = Log(reading.consume("--idle-timeout", "3", name="rest").out)
    rest.wait_for(1)
    assert Place(first["queue"], first["offset"]) not in rest.places()


def test_only_lines_that_went_out_are_committed_when_the_reader_stands_still(
    reading: Reading,
) -> None:
    process = reading.consume(stdout=subprocess.PIPE)
    pipe = process.popen.stdout
    assert pipe is not None
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    until(lambda: waiting_bytes(pipe) > PIPE_BYTES * 3 // 4, limit_s=60)
    process.popen.send_signal(signal.SIGTERM)
    process.wait()
    lines = pipe.read().splitlines(keepends=True)
    printed = [json.loads(line) for line in lines if line.endswith(b"\n")]
    assert 0 < len(printed) < EVENTS // 2
    rest = reading.rest(EVENTS - len(printed))
    assert {Place(line["queue"], line["offset"]) for line in printed}.isdisjoint(rest)
    assert len(set(rest)) == EVENTS - len(printed)


def test_a_consumer_with_a_limit_commits_exactly_so_many(reading: Reading) -> None:
    parts = [reading.rest(700), reading.rest(800), reading.rest(EVENTS - 1500)]
    assert [len(part) for part in parts] == [700, 800, EVENTS - 1500]
    assert len({place for part in parts for place in part}) == EVENTS
    reading.idle()


def test_an_idle_consumer_that_had_messages_ends_with_exit_code_0(reading: Reading) -> None:
    process = reading.consume("--idle-timeout", "2")
    process.wait()
    assert len({*Log(process.out).places()}) == EVENTS
    reading.idle()


def test_a_second_consumer_takes_over_half_of_the_queues_and_nothing_is_printed_twice(
    reading: Reading, part: Callable[[int], Path]
) -> None:
    first = reading.consume(name="first")
    Log(first.out).wait_for(EVENTS)
    second = reading.consume(name="second")
    reading.stage.await_owners(reading.group, 2)
    words = ["--key-field", "path", "--file", str(part(EVENTS))]
    reading.stage.terminal.run("send", reading.topic, *words)
    logs = [Log(first.out), Log(second.out)]
    await_messages(logs, 2 * EVENTS)
    for process in (first, second):
        process.end()
    printed = [place for log in logs for place in log.places()]
    assert len(printed) == len(set(printed)) == 2 * EVENTS
    assert len({place.queue for place in logs[1].places()}) == 2


def test_what_does_not_exist_is_told_with_the_remedy(stage: Stage) -> None:
    process = stage.terminal.catmq("send", "nothing", "hello")
    process.wait(4)
    assert "catmq topic create nothing" in process.err.read_text()
    assert process.out.read_bytes() == b""


def test_the_worker_example_handles_what_the_send_example_sent_until_it_is_told_to_stop(
    stage: Stage,
) -> None:
    stage.terminal.run("topic", "create", "orders", "--queues", "4")
    sender = stage.terminal.start("examples/send.py")
    sender.wait()
    assert len(sender.out.read_text().splitlines()) == 10
    worker = stage.terminal.start("examples/worker.py")
    until(lambda: len(worker.out.read_text().splitlines()) == 10, limit_s=60)
    worker.end(signal.SIGTERM)
    told = stage.terminal.admin.lag("workers")
    assert told["lag"] == 0
    assert sorted({row["topic"] for row in told["queues"]}) == [
        "orders",
        "workers_orders_fail",
    ]


def test_two_shared_workers_handle_what_the_send_example_sent_each_order_once(
    stage: Stage,
) -> None:
    topics = {topic["name"] for topic in stage.terminal.admin.topics()}
    if "orders" not in topics:
        stage.terminal.run("topic", "create", "orders", "--queues", "1")
    workers = [stage.terminal.start("examples/share_worker.py") for _ in range(2)]
    before = stage.stored("orders")
    stage.terminal.start("examples/send.py").wait()
    lines = lambda: [line for one in workers for line in one.out.read_text().splitlines()]  # noqa: E731
    until(lambda: len(lines()) == before + 10, limit_s=60)
    for worker in workers:
        worker.end(signal.SIGTERM)
    assert len({*lines()}) == before + 10
    until(lambda: stage.terminal.admin.lag("shared-workers")["lag"] == 0)
    assert stage.terminal.admin.share_runs("shared-workers")["runs"] == []


def waiting_bytes(pipe: IO[bytes]) -> int:
    """How much was written into a pipe and not read."""
    answer = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, answer)
    return answer[0]


def test_tail_prints_the_newest_messages_and_then_each_new_one_once(stage: Stage) -> None:
    topic = stage.fresh("followed")
    stage.terminal.run("topic", "create", topic, "--queues", "1")
    for number in range(3):
        stage.terminal.run("send", topic, f"old {number}")
    tail = stage.terminal.catmq("tail", topic, "--last", "2")
    log = Log(tail.out)
    log.wait_for(2)
    stage.terminal.run("send", topic, "new")
    stage.terminal.admin.expand_topic(topic, queues=1)
    (_, added) = stage.terminal.admin.topic(topic)["queues"]
    sent = {"messages": [{"body": "in the new queue", "queue": added["queue"]}]}
    assert stage.server.call("POST", f"/api/v1/topics/{topic}/messages", sent)[0] == 200
    log.wait_for(4)
    tail.end(signal.SIGINT)
    assert [line["body"] for line in log.follow()] == [
        "old 1",
        "old 2",
        "new",
        "in the new queue",
    ]
