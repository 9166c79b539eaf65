"""`script/bench aio`: the client for asyncio, compared with the plain client in one run.

Starts a private database server and a whole server on it. Each round measures all lines, one
after the other, in one process. Rates are messages a second; each ratio is that of a round.
A line misses its target if no round reaches it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import Spread, machine, plain, ratios
from catmq_client import Consumer, HttpTransport, NewMessage, Producer
from catmq_client.admin.api import Admin
from catmq_client.aio import AsyncConsumer, AsyncProducer

BODY = b"x" * 200
KEYS = 1_000
QUEUES = 4
CONCURRENT_SENDS = 100


@dataclass(frozen=True)
class Place:
    """Where a line sends or reads: a broker, a topic, and the number of messages."""

    url: str
    api_key: str
    topic: str
    count: int

    @property
    def client(self) -> dict[str, Any]:
        return {"urls": self.url, "api_key": self.api_key}

    @property
    def reader(self) -> dict[str, Any]:
        """Arguments of a consumer, in a group of its own."""
        return {**self.client, "group": f"g-{uuid.uuid4().hex}", "topics": [self.topic]}


def send_async(place: Place) -> None:
    with Producer(**place.client) as producer:
        futures = [
            producer.send_async(place.topic, BODY, key=str(n % KEYS))
            for n in range(place.count)
        ]
        for future in futures:
            future.result()


async def send_many(place: Place) -> None:
    async with AsyncProducer(**place.client) as producer:
        results = await producer.send_many(
            place.topic, (NewMessage(BODY, str(n % KEYS)) for n in range(place.count))
        )
        assert all(isinstance(result, tuple) for result in results)


async def send_soon(place: Place) -> None:
    async with AsyncProducer(**place.client) as producer:
        futures = [
            await producer.send_soon(place.topic, BODY, key=str(n % KEYS))
            for n in range(place.count)
        ]
        for future in futures:
            await future


async def send_concurrently(place: Place) -> None:
    await _send_concurrently(place, has_keys=False)


async def send_keys_concurrently(place: Place) -> None:
    await _send_concurrently(place, has_keys=True)


async def _send_concurrently(place: Place, *, has_keys: bool) -> None:
    async with AsyncProducer(**place.client) as producer:

        async def send_some(first: int) -> None:
            for n in range(first, place.count, CONCURRENT_SENDS):
                key = str(n % KEYS) if has_keys else None
                await producer.send(place.topic, BODY, key=key)

        async with asyncio.TaskGroup() as group:
            for first in range(CONCURRENT_SENDS):
                group.create_task(send_some(first))


def iterate(place: Place) -> None:
    with Consumer(**place.reader) as consumer:
        for count, _ in enumerate(consumer, 1):
            if count == place.count:
                return


async def iterate_async(place: Place) -> None:
    async with AsyncConsumer(**place.reader) as consumer:
        count = 0
        async for _ in consumer:
            count += 1
            if count == place.count:
                return


def run(place: Place) -> None:
    consumer, handled = Consumer(**place.reader), 0

    def handle(message: Any) -> None:
        nonlocal handled
        handled += 1
        if handled >= place.count:
            consumer.stop()

    consumer.run(handle)


async def run_async(place: Place) -> None:
    consumer, handled = AsyncConsumer(**place.reader), 0

    async def handle(message: Any) -> None:
        nonlocal handled
        handled += 1
        if handled >= place.count:
            consumer.stop()

    await consumer.run(handle)


@dataclass(frozen=True)
class Line:
    """A measured line; `limit` names the line that its ratio is to, `target` the least."""

    name: str
    work: Callable[[Place], Coroutine[Any, Any, None] | None]
    limit: str = ""
    target: float = 0.0
    reads: bool = False


LINES = (
    Line("send_async, plain", send_async),
    Line("send_many", send_many, "send_async, plain", 0.9),
    Line("send_soon", send_soon, "send_async, plain", 0.9),
    Line("100 x await send", send_concurrently, "send_async, plain", 0.5),
    # The messages of 100 tasks go to four queues, so a request has 25 of them.
    Line("the same, with keys", send_keys_concurrently, "send_async, plain"),
    Line("iteration, plain", iterate, reads=True),
    Line("async for", iterate_async, "iteration, plain", 0.8, reads=True),
    Line("run, plain, 8 threads", run, reads=True),
    Line("await run", run_async, "run, plain, 8 threads", 0.8, reads=True),
)


def measure(line: Line, place: Place, *, is_uvloop: bool) -> float:
    """Return the messages a second of a line."""
    began = time.perf_counter()
    work = line.work(place)
    if work is not None:
        factory = None
        if is_uvloop:
            import uvloop  # type: ignore[import-not-found]

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)
    return place.count / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/bench aio", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=40_000, help="a line and round")
    parser.add_argument("--uvloop", action="store_true", help="use uvloop, if it is there")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rates: dict[str, list[float]] = {line.name: [] for line in LINES}
    with (
        tempfile.TemporaryDirectory(prefix="catmq-aio-") as directory,
        bench.database(Path(directory) / "db") as database_url,
        bench.server(Path(directory) / "data", database_url) as credentials,
    ):
        setting = bench.prepare(database_url, credentials, "")
        url, api_key = setting.url, setting.api_key
        with closing(HttpTransport(url, api_key=api_key)) as transport:
            Admin(transport).create_topic("read", queues=QUEUES)
        readable = Place(url, api_key, "read", chosen.messages)
        asyncio.run(send_many(readable))
        for number in range(chosen.rounds):
            for line in LINES:
                place = (
                    readable
                    if line.reads
                    else Place(url, api_key, setting.topic, chosen.messages)
                )
                rates[line.name].append(measure(line, place, is_uvloop=chosen.uvloop))
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr)
    return report(rates, chosen)


def report(rates: dict[str, list[float]], chosen: argparse.Namespace) -> int:
    """Print the table. Return 1 if a line has missed its target."""
    print(f"{'':24}{'median/s':>10}{'ratio':>8}{'of rounds':>14}{'target':>8}")
    rows, missed = [], 0
    for line in LINES:
        spread = (
            Spread.of(ratios(rates[line.name], rates[line.limit])) if line.limit else None
        )
        text = f"{line.name:24}{Spread.of(rates[line.name]).median:10,.0f}"
        if spread is not None:
            missed += not spread.reaches(line.target)
            text += f"{spread.median:8.2f}{spread.least:8.2f} -{spread.most:5.2f}{line.target:8.2f}"
        print(text)
        rows.append({"name": line.name, "rates": rates[line.name], "ratio": plain(spread)})
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), "lines": rows}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
