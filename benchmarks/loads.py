"""Publishers and a consumer as processes of their own, through the client; each tells what
it timed.

A body begins with the moment its message was due, by the clock that all processes of a
machine share. At a fixed rate a send is due by the clock, whatever became of earlier ones,
and is timed from then on: a pause of the server is felt by every message that should have
been sent in it, not by one only.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import struct
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

STAMP = struct.Struct("d")
LATE_S = 0.2  # how long a poll of the consumer waits before it looks whether it should end
# (due, ended) of a request or (due, received) of a message, s, one after the other: a
# million take 16 MB.
Times = array


@dataclass(frozen=True)
class Load:
    """What is sent: `rate` messages a second of all publishers together, None: as fast as
    it goes.
    """

    url: str
    api_key: str
    topic: str
    queues: tuple[int, ...]
    size: int  # of a body, bytes
    batch: int  # messages of a request
    rate: float | None = None


def settle() -> None:
    """Keeps what is loaded by now out of the garbage collector's sight: it would look
    through all of it now and then, for 50 ms, and what is measured would be that."""
    gc.collect()
    gc.freeze()


class Publishers:
    """Processes that share the queues and send to each of theirs from a thread of its own,
    until stopped.
    """

    def __init__(self, load: Load, *, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop, self._go = context.Event(), context.Event()
        self._pipes = []
        for number in range(count):
            mine, theirs = context.Pipe(duplex=False)
            job = (load, load.queues[number::count], number / count)
            context.Process(
                target=_publish, args=(job, self._go, self._stop, theirs), daemon=True
            ).start()
            self._pipes.append(mine)
        for pipe in self._pipes:
            pipe.recv()  # it has connected

    def begin(self) -> None:
        """Sends from now on."""
        self._go.set()

    def end(self) -> tuple[int, Times[float]]:
        """Stops; how many messages were stored, and the times of the requests."""
        self._stop.set()
        found, times = 0, array("d")
        for pipe in self._pipes:
            count, some = pipe.recv()
            found += count
            times.extend(some)
        return found, times


def _publish(
    job: tuple[Load, Sequence[int], float], go: Event, stop: Event, out: Connection
) -> None:
    from catmq_client import Producer

    load, queues, phase = job
    producer = Producer(load.url, api_key=load.api_key)
    # connected, and warm
    producer.send_batch(load.topic, _messages(load, queues[0], time.monotonic()))
    settle()
    out.send("up")
    go.wait()
    counts, times = [0] * len(queues), [array("d") for _ in queues]
    senders = []
    for index, queue in enumerate(queues):
        lane = _Lane(producer, load, queue, (phase + index) / len(queues), times[index])
        senders.append(threading.Thread(target=lane.run, args=(stop, counts, index)))
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    out.send((sum(counts), sum(times[1:], times[0])))
    out.close()
    os._exit(0)


@dataclass
class _Lane:
    """Sends to one queue; `phase` (0 … 1) spreads the lanes evenly over the time between
    two sends.
    """

    producer: Any
    load: Load
    queue: int
    phase: float
    times: Times[float]

    def run(self, stop: Event, counts: list[int], index: int) -> None:
        load = self.load
        every_s = load.batch * len(load.queues) / load.rate if load.rate else 0.0
        due = time.monotonic() + self.phase * every_s
        pause = threading.Event()
        while not stop.is_set():
            if every_s:
                pause.wait(max(0.0, due - time.monotonic()))
            else:
                due = time.monotonic()
            receipts = self.producer.send_batch(
                load.topic, _messages(load, self.queue, due)
            )
            self.times.extend((due, time.monotonic()))
            counts[index] += len(receipts)
            due += every_s


def _messages(load: Load, queue: int, due: float) -> list[Any]:
    from catmq_client import NewMessage

    body = STAMP.pack(due).ljust(load.size, b"x")
    return [
        NewMessage(body, key=f"key-{number}", queue=queue) for number in range(load.batch)
    ]


class Reader:
    """A process with a consumer that reads all queues of a group by long polling, until
    told to end.
    """

    def __init__(self, load: Load, group: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._count = context.Value("q", 0)
        self._pipe, theirs = context.Pipe(duplex=False)
        arguments = ((load, group), self._stop, self._count, theirs)
        context.Process(target=_consume, args=arguments, daemon=True).start()

    def await_ready(self) -> None:
        """Returns when it owns every queue."""
        self._pipe.recv()

    def await_count(self, count: int, *, limit_s: float) -> bool:
        """Whether it has got so many messages within the limit."""
        pause, end = threading.Event(), time.monotonic() + limit_s
        while self._count.value < count and time.monotonic() < end:
            pause.wait(0.02)
        return bool(self._count.value >= count)

    def end(self) -> Times[float]:
        """Stops it; the times of its messages."""
        self._stop.set()
        found: Times[float] = self._pipe.recv()
        return found


def _consume(job: tuple[Load, str], stop: Event, count: Any, out: Connection) -> None:
    from catmq_client import Consumer

    load, group = job
    consumer = Consumer(load.url, api_key=load.api_key, group=group, topics=[load.topic])
    times, told = array("d"), False
    settle()
    while not stop.is_set():
        messages = consumer.poll(500, timeout_s=LATE_S)
        now = time.monotonic()
        for message in messages:
            times.extend((STAMP.unpack_from(message.body)[0], now))
        count.value += len(messages)
        if not told and len(consumer.assignment()) == len(load.queues):
            told = True
            out.send("ready")
    consumer.close()
    out.send(times)
    out.close()
    os._exit(0)
