"""A client process of script/bench peers: `python -m benchmarks.peers.worker JOB`.

It prints `ready` when it has connected, waits for a line on stdin, does its job and prints
the result as a line of JSON. It ends when stdin ends, so it does not outlive its parent.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.peers.clients import BODY_BYTES, Consumer, Publisher, Reading

BODY = (b"0123456789abcdefghijklmnopqrstuvwxyz" * BODY_BYTES)[:BODY_BYTES]
STAMP_BYTES = 18
LATE_S = 10.0  # how long a consumer waits for its first or, if timed, last messages
SKEW_S = 1.0  # longest time between the starts of a paced publisher and its consumer
READY_EVERY_S = 0.02


@dataclass(frozen=True)
class Job:
    """The work of a client process.

    `role` is a key of PUBLISHING or CONSUMING. Publishers send batches of `batch` messages
    for `seconds`, or until `count` if it is set. Paced publishers send `rate` single
    messages a second.
    """

    client: str  # module of benchmarks.peers.clients
    connection: Mapping[str, Any]
    role: str
    topic: str
    batch: int = 1
    seconds: float = 0.0
    count: int = 0
    rate: float = 0.0
    group: str = ""
    worker: int = 0
    workers: int = 1
    commits: str = "each"
    is_named: bool = False  # True: the publisher names keys and queues (CatMQ only)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Result:
    """Messages, seconds and CPU seconds of a client process, and latencies in seconds."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)


def stamped(due: float) -> bytes:
    """Return a body that begins with a time, as text, since PGMQ takes JSON only.

    >>> due_time(stamped(12.5)), len(stamped(12.5))
    (12.5, 200)
    """
    return f"{due:0{STAMP_BYTES}.6f}".encode().ljust(BODY_BYTES, b"x")


def due_time(body: bytes) -> float:
    """Return the time in a stamped body."""
    return float(body[:STAMP_BYTES])


def publish(job: Job, client: Publisher) -> Result:
    """Send batches, each after the confirmation of the previous batch."""
    bodies, sent = [BODY] * job.batch, 0
    began = time.monotonic()
    while (job.count and sent < job.count) or (
        not job.count and time.monotonic() < began + job.seconds
    ):
        client.send(bodies)
        sent += job.batch
    return Result(sent, time.monotonic() - began)


def publish_paced(job: Job, client: Publisher) -> Result:
    """Send single messages, each at its time.

    A late send does not delay the due times of later messages, so a pause of the server
    counts for all messages that were due in it.
    """
    count = round(job.rate * job.seconds)
    began = time.monotonic()
    for number in range(count):
        due = began + number / job.rate
        time.sleep(max(0.0, due - time.monotonic()))
        client.send([stamped(due)])
    return Result(count, time.monotonic() - began)


def consume(job: Job, client: Consumer) -> Result:
    """Receive and acknowledge, until the time is over or the topic is read.

    The first batch is not counted, nor the time until it is there, in which a library
    connects or looks for the start of the topic. The time ends with the last
    acknowledgement, without the wait at the end of the topic.
    """
    give_up_at = time.monotonic() + LATE_S
    while not client.receive():
        if time.monotonic() > give_up_at:
            return Result()
    client.acknowledge()
    received = 0
    began = ended = time.monotonic()
    while ended < began + job.seconds:
        messages = client.receive()
        if not messages:
            break
        client.acknowledge()
        received += len(messages)
        ended = time.monotonic()
    return Result(received, ended - began)


def consume_timed(job: Job, client: Consumer) -> Result:
    """Record the time of each message from its due time until it was received."""
    latencies_s: list[float] = []
    count = round(job.rate * job.seconds)
    began = time.monotonic()
    while len(latencies_s) < count and time.monotonic() < began + job.seconds + LATE_S:
        messages = client.receive()
        now = time.monotonic()
        due_times = (due_time(client.body(message)) for message in messages)
        # Older messages are from a measure that was cut off.
        latencies_s += [now - due for due in due_times if due >= began - SKEW_S]
        if messages:
            client.acknowledge()
    return Result(len(latencies_s), time.monotonic() - began, latencies_s=latencies_s)


PUBLISHING = {"publish": publish, "publish_paced": publish_paced}
CONSUMING = {"consume": consume, "consume_timed": consume_timed}


def connect_publisher(job: Job) -> Publisher:
    """Return a publisher that has sent something, so connections and caches are warm."""
    module = importlib.import_module(f"benchmarks.peers.clients.{job.client}")
    make = module.named_publisher if job.is_named else module.publisher
    client: Publisher = make({**job.connection, "worker": job.worker}, job.topic)
    if job.role == "publish_paced":
        # The consumer ignores it, since it was due long ago.
        client.send([stamped(0.0)])
    elif not job.count:
        # Not before a topic is filled: consumers expect exactly `count` messages.
        client.send([BODY] * job.batch)
    return client


def connect_consumer(job: Job) -> Consumer:
    """Return a consumer that has its share of the topic."""
    module = importlib.import_module(f"benchmarks.peers.clients.{job.client}")
    reading = Reading(
        topic=job.topic,
        group=job.group,
        member=job.worker,
        members=job.workers,
        batch=job.batch,
        commits=job.commits,
    )
    client: Consumer = module.consumer(job.connection, reading)
    # The pause keeps members that wait for others from reading the topic meanwhile.
    while not client.is_ready():
        time.sleep(READY_EVERY_S)
    return client


def await_start(meanwhile: Callable[[], object]) -> None:
    """Return when the parent's line has come. Calls `meanwhile` while it waits.

    Ends the process if the parent has ended.
    """
    while not select.select([sys.stdin], [], [], READY_EVERY_S)[0]:
        meanwhile()
    if not sys.stdin.readline():
        os._exit(1)


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    publisher = connect_publisher(job) if job.role in PUBLISHING else None
    consumer = None if publisher else connect_consumer(job)
    # Without this, the garbage collector would scan all modules in the middle of a measure.
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await_start(consumer.is_ready if consumer else lambda: None)
    if consumer:
        consumer.begin()
    cpu_before_s = time.process_time()
    if publisher:
        result = PUBLISHING[job.role](job, publisher)
    elif consumer:
        result = CONSUMING[job.role](job, consumer)
    result.cpu_s = time.process_time() - cpu_before_s
    print(json.dumps(asdict(result)), flush=True)
    for client in (publisher, consumer):
        if client:
            client.close()
    sys.stdout.flush()
    # Without the clean-up of the interpreter: threads of a library must not delay the next
    # measure.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
