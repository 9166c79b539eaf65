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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.peers.clients import BODY_BYTES, Consumer, Publisher, Reading

BODY = (b"0123456789abcdefghijklmnopqrstuvwxyz" * BODY_BYTES)[:BODY_BYTES]
STAMP_BYTES = 18
LATE_S = 10.0  # how long a timed consumer waits for the last messages
SKEW_S = 1.0  # most that the two sides of a paced measure begin apart


@dataclass(frozen=True)
class Job:
    """What a client process does.

    `role` is a key of ROLES. Publishers send batches of `batch` messages for `seconds`, or
    until `count` if there is one. Paced publishers send `rate` single messages a second.
    """

    client: str  # module of benchmarks.peers.clients
    place: Mapping[str, Any]
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

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Result:
    """What a client process did: messages, seconds, CPU seconds, and latencies in s."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)


def stamped(due: float) -> bytes:
    """Return a body that begins with a time, in text: not all systems take any bytes.

    >>> due_of(stamped(12.5)), len(stamped(12.5))
    (12.5, 200)
    """
    return f"{due:0{STAMP_BYTES}.6f}".encode().ljust(BODY_BYTES, b"x")


def due_of(body: bytes) -> float:
    """Return the time in a stamped body."""
    return float(body[:STAMP_BYTES])


def publish(job: Job, client: Publisher) -> Result:
    """Send batches, each after the confirmation of the one before."""
    bodies, sent = [BODY] * job.batch, 0
    begun = time.monotonic()
    while (job.count and sent < job.count) or (
        not job.count and time.monotonic() < begun + job.seconds
    ):
        client.send(bodies)
        sent += job.batch
    return Result(sent, time.monotonic() - begun)


def publish_paced(job: Job, client: Publisher) -> Result:
    """Send single messages, each at its time. A late send does not delay the due times of
    later ones, so a pause of the server counts for all messages that were due in it.
    """
    count = round(job.rate * job.seconds)
    begun = time.monotonic()
    for number in range(count):
        due = begun + number / job.rate
        time.sleep(max(0.0, due - time.monotonic()))
        client.send([stamped(due)])
    return Result(count, time.monotonic() - begun)


def consume(job: Job, client: Consumer) -> Result:
    """Receive and acknowledge, until the time is over or the topic is read."""
    received = 0
    begun = ended = time.monotonic()
    while ended < begun + job.seconds:
        messages = client.receive()
        if not messages:
            break
        client.acknowledge()
        received += len(messages)
        ended = time.monotonic()
    return Result(received, ended - begun)


def consume_timed(job: Job, client: Consumer) -> Result:
    """Take the time from when each message was due until it was received."""
    latencies_s: list[float] = []
    count = round(job.rate * job.seconds)
    begun = time.monotonic()
    while len(latencies_s) < count and time.monotonic() < begun + job.seconds + LATE_S:
        messages = client.receive()
        now = time.monotonic()
        dues = (due_of(client.body(message)) for message in messages)
        # Older messages are from a measure that was cut off.
        latencies_s += [now - due for due in dues if due >= begun - SKEW_S]
        client.acknowledge()
    return Result(len(latencies_s), time.monotonic() - begun, latencies_s=latencies_s)


PUBLISHING = {"publish": publish, "publish_paced": publish_paced}
CONSUMING = {"consume": consume, "consume_timed": consume_timed}


def may_begin(wait_s: float) -> bool:
    """Return True if the parent's line has come. Ends the process if the parent has ended."""
    if not select.select([sys.stdin], [], [], wait_s)[0]:
        return False
    if not sys.stdin.readline():
        os._exit(1)
    return True


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    module = importlib.import_module(f"benchmarks.peers.clients.{job.client}")
    place = {**job.place, "worker": job.worker}
    client: Any
    if job.role in PUBLISHING:
        name = "named_publisher" if job.place.get("named") else "publisher"
        client = getattr(module, name)(place, job.topic)
        if not job.count and job.role != "publish_paced":
            client.send([BODY] * job.batch)  # connections and caches are warm
        if job.role == "publish_paced":
            # A consumer ignores it: it was due long ago.
            client.send([stamped(0.0)])
        perform = lambda: PUBLISHING[job.role](job, client)  # noqa: E731
    else:
        reading = Reading(
            topic=job.topic,
            group=job.group,
            member=job.worker,
            members=job.workers,
            batch=job.batch,
            commits=job.commits,
        )
        client = module.consumer(place, reading)
        # A pause, or members that wait for others would read the topic meanwhile.
        while not client.is_ready():
            time.sleep(0.02)
        perform = lambda: CONSUMING[job.role](job, client)  # noqa: E731
    # Without this, the collector would look through all modules now and then.
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while not may_begin(0.02):
        if job.role in CONSUMING:
            client.is_ready()
    cpu_before_s = time.process_time()
    result = perform()
    result.cpu_s = time.process_time() - cpu_before_s
    print(json.dumps(asdict(result)), flush=True)
    client.close()
    sys.stdout.flush()
    # Threads of a library must not delay the next measure.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
