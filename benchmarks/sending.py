"""`script/bench sending`: the client's CPU for sends, without a network.

Each line sends batches of 100 messages of 200 bytes through the whole client, down to a
transport that answers at once. A round measures all lines in turn, and each ratio is that of a
round: to `send_batch` of messages that name their queue. The CPU of all threads counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import machine
from catmq_client import NewMessage, Producer
from catmq_client.aio import AsyncProducer

BODY = bytes(range(200))
TOPIC = "orders"
QUEUES = (1, 2, 3, 4)
BATCH = 100
LAYOUT = {
    "name": TOPIC,
    "layout": {"version": 1, "slots": [QUEUES[slot % 4] for slot in range(1024)]},
    "queues": [{"queue": queue, "node": "a", "state": "read_write"} for queue in QUEUES],
}
KINDS: dict[str, list[Any]] = {
    "named queue": [NewMessage(BODY, key=f"k{n}", queue=1) for n in range(BATCH)],
    "bodies only": [BODY] * BATCH,
    "no key": [NewMessage(BODY) for _ in range(BATCH)],
    "one key": [NewMessage(BODY, key="k") for _ in range(BATCH)],
    "100 keys": [NewMessage(BODY, key=f"k{n}") for n in range(BATCH)],
}
REFERENCE = "send_batch, named queue"


class InstantTransport:
    """Answers as a broker that stores each message at the next offset of its queue."""

    def __init__(self) -> None:
        self._heads: defaultdict[int, int] = defaultdict(int)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        if body is None:
            return LAYOUT
        runs = []
        for queue, messages in itertools.groupby(body["messages"], lambda m: m["queue"]):
            count = len(list(messages))
            runs.append({"count": count, "queue": queue, "offset": self._heads[queue]})
            self._heads[queue] += count
        return {"runs": runs}


def send_batch(messages: list[Any], batches: int) -> None:
    with Producer(transport=InstantTransport()) as producer:
        for _ in range(batches):
            results = producer.send_batch(TOPIC, messages)
            assert len(results) == BATCH


def send_async(messages: list[Any], batches: int) -> None:
    arguments = [
        message._asdict() if isinstance(message, NewMessage) else {"body": message}
        for message in messages
    ]
    with Producer(transport=InstantTransport()) as producer:
        for _ in range(batches):
            futures = [producer.send_async(TOPIC, **fields) for fields in arguments]
            for future in futures:
                future.result()


def send_many(messages: list[Any], batches: int) -> None:
    async def work() -> None:
        async with AsyncProducer(transport=InstantTransport()) as producer:
            for _ in range(batches):
                results = await producer.send_many(TOPIC, messages)
                assert len(results) == BATCH

    asyncio.run(work())


WAYS: tuple[Callable[[list[Any], int], None], ...] = (send_batch, send_async, send_many)


def cpu_us(
    send: Callable[[list[Any], int], None], messages: list[Any], batches: int
) -> float:
    """Return the µs of CPU of the process for a batch."""
    gc.collect()
    started = time.process_time()
    send(messages, batches)
    return (time.process_time() - started) / batches * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench sending", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=500, help="per line and round")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    lines = {
        f"{send.__name__}, {kind}": (send, messages)
        for send in WAYS
        for kind, messages in KINDS.items()
    }
    for send, messages in lines.values():
        send(messages, 20)
    costs: dict[str, list[float]] = {name: [] for name in lines}
    for _ in range(options.rounds):
        for name, (send, messages) in lines.items():
            costs[name].append(cpu_us(send, messages, options.batches))
    print("| | median (least), µs per 100 messages | ratio (least to most of the rounds) |")
    print("|---|---|---|")
    for name, figures in costs.items():
        spread = sorted(a / b for a, b in zip(figures, costs[REFERENCE], strict=True))
        print(
            f"| {name} | {statistics.median(figures):.0f} ({min(figures):.0f}) | "
            f"{statistics.median(spread):.2f} ({spread[0]:.2f} to {spread[-1]:.2f}) |"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "us": costs}, indent=2))


if __name__ == "__main__":
    main()
