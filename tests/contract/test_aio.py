"""The client for asyncio against a real broker: nothing is lost, and nothing comes twice that
was not at work when a task was cancelled.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import Consumer, HttpTransport, Message, NewMessage, Receipt
from catmq_client.aio import AsyncConsumer, AsyncProducer, AsyncShareConsumer
from tests.support.broker import Broker
from tests.support.loops import happens

COUNT = 10_000
KEYS = 50
LIMIT_S = 120.0


@pytest.fixture
def transport(broker: Broker) -> Iterator[HttpTransport]:
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


async def send_numbers(transport: HttpTransport, topic: str, count: int) -> None:
    async with AsyncProducer(transport=transport) as producer:
        results = await producer.send_many(
            topic, [NewMessage(b"%d" % n, key=str(n % KEYS)) for n in range(count)]
        )
    assert all(isinstance(result, Receipt) for result in results)


def test_messages_are_sent_in_every_way_and_read_in_every_way(
    transport: HttpTransport, topic: str
) -> None:
    async def main() -> None:
        async with AsyncProducer(transport=transport) as producer:
            receipt = await producer.send(topic, "0", key="k", headers={"h": "v"})
            assert receipt.offset == 0
            await (await producer.send_soon(topic, "1", key="k"))
            await producer.send_many(topic, [NewMessage("2", "k"), NewMessage("3", "k")])
            await asyncio.gather(*(producer.send(topic, str(n)) for n in range(4, 20)))
        options: dict[str, Any] = {"transport": transport, "topics": [topic]}
        async with AsyncConsumer(
            group="iterating", consumer_timeout_ms=1_500, **options
        ) as consumer:
            numbers = [int(message.body) async for message in consumer]
        assert sorted(numbers) == list(range(20))
        assert [n for n in numbers if n < 4] == [0, 1, 2, 3]
        for kind, group in ((AsyncConsumer, "running"), (AsyncShareConsumer, "sharing")):
            handled: list[int] = []
            running = kind(group=group, **options)

            async def handle(
                message: Message, handled: list[int] = handled, running: Any = running
            ) -> None:
                await asyncio.sleep(0)
                handled.append(int(message.body))
                if len(handled) == 20:
                    running.stop()

            await running.run(handle)
            assert sorted(handled) == list(range(20))

    run(main())


@pytest.mark.parametrize("kind", [AsyncConsumer, AsyncShareConsumer])
def test_of_10_000_messages_none_is_lost_through_cancellations_and_restarts(
    transport: HttpTransport, topic: str, kind: Any
) -> None:
    """Each consumer is cancelled in the middle. A message is handled twice only if a handler
    was at work on it at that moment.
    """
    choice = random.Random(7)
    handled: Counter[int] = Counter()
    cancelled: Counter[int] = Counter()
    last_of_key: defaultdict[str | None, list[int]] = defaultdict(list)

    async def handle(message: Message) -> None:
        number = int(message.body)
        try:
            await asyncio.sleep(choice.choice((0, 0, 0, 0.002)))
        except asyncio.CancelledError:
            cancelled[number] += 1
            raise
        handled[number] += 1
        last_of_key[message.key].append(number)

    async def main() -> None:
        await send_numbers(transport, topic, COUNT)
        for restart in range(6):
            consumer = kind(transport=transport, group="g", topics=[topic])
            task = asyncio.create_task(consumer.run(handle, concurrency=50))
            target = COUNT * (restart + 1) // 7
            await happens(lambda target=target: len(handled) >= target)  # type: ignore[misc]
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert consumer._reader._state.failed == 0
        last = kind(transport=transport, group="g", topics=[topic])
        task = asyncio.create_task(last.run(handle, concurrency=50))
        await happens(lambda: len(handled) == COUNT)
        last.stop()
        await task

    run(main())
    assert sorted(handled) == list(range(COUNT))
    assert cancelled, "no handler was at work when its consumer was cancelled"
    if kind is AsyncShareConsumer:
        # What a handler has finished is reported before the member leaves.
        assert set(handled.values()) == {1}
    else:
        for numbers in last_of_key.values():
            # In the order of the key. Repeats come in order again, from an earlier one on.
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts)


def test_a_plain_consumer_with_a_coroutine_reads_all(
    transport: HttpTransport, topic: str
) -> None:
    run(send_numbers(transport, topic, 1_000))
    consumer = Consumer(transport=transport, group="g", topics=[topic])
    handled: list[int] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        handled.append(int(message.body))
        if len(handled) == 1_000:
            consumer.stop()

    consumer.run(handle, threads=20)
    assert sorted(handled) == list(range(1_000))
