"""AsyncProducer, futures that are awaited, and how results reach event loops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from catmq_client import CatmqError, Producer, Receipt
from catmq_client.aio import AsyncProducer
from catmq_client.errors import (
    BufferFull,
    Closed,
    InvalidRequest,
    MessageRefused,
    NotFound,
    OptionError,
)
from catmq_client.loops import LoopBell, LoopEvent
from catmq_client.testing import FakeBroker
from tests.support.held import HeldTransport
from tests.support.loops import LIMIT_S, happens, run
from tests.support.waiting import until

SENDS = "POST .*/messages"


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("t", queues=1)
    return made


@pytest.fixture
def held(broker: FakeBroker) -> Iterator[HeldTransport]:
    made = HeldTransport(broker)
    yield made
    made.open_all()


def bodies(broker: FakeBroker) -> list[str]:
    return [message.body.decode() for message in broker.messages("t")]


def test_a_message_is_stored_when_send_returns(broker: FakeBroker) -> None:
    async def main() -> Receipt:
        async with AsyncProducer(transport=broker) as producer:
            receipt = await producer.send("t", json={"n": 1}, key="k", headers={"h": "v"})
            assert bodies(broker) == ['{"n":1}']
            return receipt

    assert run(main()).offset == 0
    (message,) = broker.messages("t")
    assert (message.key, message.headers) == ("k", {"h": "v"})


def test_sends_of_one_turn_of_the_loop_share_a_request(broker: FakeBroker) -> None:
    async def main() -> list[Receipt]:
        async with AsyncProducer(transport=broker) as producer:
            await producer.send("t", "first")
            return await asyncio.gather(*(producer.send("t", str(n)) for n in range(50)))

    assert [receipt.offset for receipt in run(main())] == list(range(1, 51))
    # A sender may take the batch before the turn is over, but not message by message.
    assert len(broker.seen(SENDS)) < 10


def test_results_of_a_batch_reach_the_loop_in_one_call(
    broker: FakeBroker, held: HeldTransport
) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        async with AsyncProducer(transport=held, linger_ms=10_000) as producer:
            await producer.send("t", "first")
            gate = held.hold(SENDS)
            futures = [await producer.send_soon("t", str(n)) for n in range(50)]
            tasks = [asyncio.create_task(_receipt(future)) for future in futures]
            flush = asyncio.create_task(producer.flush(LIMIT_S))
            await happens(lambda: gate.held)
            with mock.patch.object(
                loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe
            ) as calls:
                gate.open()
                receipts = await asyncio.gather(*tasks)
                assert [receipt.offset for receipt in receipts] == list(range(1, 51))
                count = sum(
                    call.args[0].__name__ == "_end_waiters" for call in calls.mock_calls
                )
            await flush
            return count

    assert run(main()) == 1


async def _receipt(future: Any) -> Receipt:
    receipt: Receipt = await future
    return receipt


def test_send_many_returns_receipts_and_errors_in_order(broker: FakeBroker) -> None:
    async def main() -> list[Receipt | CatmqError]:
        async with AsyncProducer(
            transport=broker, buffer_messages=20, batch_messages=7
        ) as producer:
            return await producer.send_many("t", [str(n) for n in range(100)])

    assert [getattr(result, "offset", result) for result in run(main())] == list(range(100))
    assert bodies(broker) == [str(n) for n in range(100)]


def test_a_refused_message_of_many_fails_alone(broker: FakeBroker) -> None:
    refusal = MessageRefused("too large", code="message_too_large")
    broker.fail(SENDS, refusal, times=1)

    async def main() -> list[Receipt | CatmqError]:
        async with AsyncProducer(transport=broker) as producer:
            future = await producer.send_soon("t", "1")
            with pytest.raises(MessageRefused):
                await future
            return await producer.send_many("t", ["2", "3"])

    assert all(isinstance(result, Receipt) for result in run(main()))
    assert bodies(broker) == ["2", "3"]


def test_an_unknown_topic_is_told_to_every_task_that_sends_to_it(
    broker: FakeBroker,
) -> None:
    async def main() -> list[Any]:
        async with AsyncProducer(transport=broker) as producer:
            return await asyncio.gather(
                *(producer.send("unknown", "x") for _ in range(5)), return_exceptions=True
            )

    assert [type(error) for error in run(main())] == [NotFound] * 5
    assert len(broker.seen("GET .*/topics/unknown")) == 1


def test_a_look_up_survives_the_task_that_began_it(
    broker: FakeBroker, held: HeldTransport
) -> None:
    gate = held.hold("GET .*/topics/t$")

    async def main() -> Receipt:
        async with AsyncProducer(transport=held) as producer:
            first = asyncio.create_task(producer.send("t", "1"))
            await happens(lambda: gate.held)
            second = asyncio.create_task(producer.send("t", "2"))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            gate.open()
            return await second

    assert run(main()).offset == 0
    assert bodies(broker) == ["2"] and gate.held == 1


def test_a_task_that_is_cancelled_in_a_send_disturbs_no_other(
    broker: FakeBroker, held: HeldTransport
) -> None:
    """No result is set on a future that was cancelled: the loop would log that as an error."""

    async def main() -> Receipt:
        async with AsyncProducer(transport=held) as producer:
            await producer.send("t", "0")
            gate = held.hold(SENDS)
            tasks = [asyncio.create_task(producer.send("t", str(n))) for n in (1, 2)]
            await happens(lambda: gate.held)
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            gate.open()
            return await tasks[1]

    run(main())
    # The send was under way, so its message is stored, too.
    assert bodies(broker) == ["0", "1", "2"]


def test_a_sender_thread_survives_a_closed_loop(
    broker: FakeBroker, held: HeldTransport
) -> None:
    producer = AsyncProducer(transport=held)
    run(producer.send("t", "0"))
    gate = held.hold(SENDS)

    async def leave() -> None:
        task = asyncio.create_task(producer.send("t", "1"))
        await happens(lambda: gate.held)
        # The end of the loop cancels the task, whose future is known to the batch.
        assert not task.done()

    run(leave())
    gate.open()
    until(lambda: bodies(broker) == ["0", "1"])
    assert run(producer.send("t", "2")).offset == 2
    run(producer.close())


def test_one_producer_serves_loops_of_two_threads_at_once(
    broker: FakeBroker, held: HeldTransport
) -> None:
    producer = AsyncProducer(transport=held)
    run(producer.send("t", "first"))
    gate = held.hold(SENDS)
    receipts: list[Receipt] = []
    threads = [
        threading.Thread(target=lambda: receipts.append(run(producer.send("t", "x"))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    gate.wait()
    gate.open()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(receipt.offset or 0 for receipt in receipts) == [1, 2]
    run(producer.close())


def test_send_soon_waits_for_room_in_line(broker: FakeBroker, held: HeldTransport) -> None:
    async def main() -> None:
        async with AsyncProducer(
            transport=held, buffer_messages=2, linger_ms=0
        ) as producer:
            await producer.send("t", "0")
            gate = held.hold(SENDS)
            for n in (1, 2):
                await producer.send_soon("t", str(n))
            waiting = [
                asyncio.create_task(producer.send_soon("t", str(n))) for n in (3, 4, 5)
            ]
            done, _ = await asyncio.wait(waiting, timeout=0.05)
            assert not done, "there was no room"
            # The task that is the next in line is cancelled; its message is not sent.
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
            gate.open()
            for future in await asyncio.gather(*waiting[1:]):
                await future

    run(main())
    assert bodies(broker) == ["0", "1", "2", "4", "5"]


@pytest.mark.parametrize("max_block_ms", [0, 30])
def test_a_buffer_that_stays_full_is_an_error(
    held: HeldTransport, max_block_ms: int
) -> None:
    async def main() -> None:
        async with AsyncProducer(
            transport=held, buffer_messages=2, linger_ms=0, max_block_ms=60_000
        ) as producer:
            await producer.send("t", "0")
            gate = held.hold(SENDS)
            for n in (1, 2):
                await producer.send_soon("t", str(n))
            producer._block_s = max_block_ms / 1000
            with pytest.raises(BufferFull, match="no room"):
                await producer.send("t", "3")
            results = await producer.send_many("t", ["4", "5"])
            assert [type(result) for result in results] == [BufferFull, BufferFull]
            gate.open()

    run(main())


def test_a_loop_runs_other_tasks_while_one_sends_without_a_pause(
    broker: FakeBroker,
) -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncProducer(transport=broker) as producer:
            await producer.send("t", "0")
            counter = asyncio.create_task(count())
            for n in range(1_000):
                await producer.send_soon("t", str(n))
            counter.cancel()
        return turns

    assert run(main()) >= 5


def test_close_goes_on_when_its_task_is_cancelled(
    broker: FakeBroker, held: HeldTransport
) -> None:
    async def main() -> None:
        producer = AsyncProducer(transport=held)
        await producer.send("t", "0")
        gate = held.hold(SENDS)
        await producer.send_soon("t", "1")
        closing = asyncio.create_task(producer.close())
        await happens(lambda: gate.held)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        gate.open()
        await producer.close()
        with pytest.raises(Closed):
            await producer.send("t", "2")

    run(main())
    assert bodies(broker) == ["0", "1"]


@pytest.mark.parametrize(
    "wrong", [{"body": "x", "json": 1}, {}, {"body": "x", "key": "\ud800"}]
)
def test_a_wrong_message_is_refused(broker: FakeBroker, wrong: dict[str, Any]) -> None:
    async def main() -> None:
        async with AsyncProducer(transport=broker) as producer:
            with pytest.raises(OptionError):
                await producer.send("t", **wrong)
            with pytest.raises(OptionError):
                await producer.send_soon("t", **wrong)

    run(main())


def test_futures_of_a_producer_can_be_awaited(broker: FakeBroker) -> None:
    with Producer(transport=broker) as producer:

        async def main() -> list[Receipt]:
            futures = [producer.send_async("t", str(n)) for n in range(20)]
            receipts = [await asyncio.wait_for(futures[0], LIMIT_S)]
            return receipts + await asyncio.gather(*futures[1:])

        assert [receipt.offset for receipt in run(main())] == list(range(20))


def test_an_awaited_future_follows_its_message_into_another_batch(
    broker: FakeBroker,
) -> None:
    """A batch that is refused as a whole is split: its event is set, and the futures belong
    to new batches.
    """
    refusal = InvalidRequest("too large", code="too_large")
    broker.fail(SENDS, refusal, times=1)

    async def main() -> list[Receipt]:
        async with AsyncProducer(transport=broker, linger_ms=10_000) as producer:
            futures = [await producer.send_soon("t", str(n)) for n in range(4)]
            tasks = [asyncio.create_task(_receipt(future)) for future in futures]
            await asyncio.sleep(0)
            await producer.flush(LIMIT_S)
            return await asyncio.gather(*tasks)

    assert [receipt.offset for receipt in run(main())] == [0, 1, 2, 3]


def test_a_producer_works_in_a_forked_child(broker: FakeBroker) -> None:
    producer = AsyncProducer(transport=broker)
    run(producer.send("t", "parent"))
    pid = os.fork()
    if pid == 0:
        try:
            receipt = asyncio.run(asyncio.wait_for(producer.send("t", "child"), LIMIT_S))
            os._exit(0 if receipt.offset == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run(producer.send("t", "parent again")).offset == 1
    run(producer.close())


def test_an_event_wakes_each_waiter_once_and_drops_closed_loops() -> None:
    event = LoopEvent()

    async def wait() -> None:
        waiter = event.waiter()
        assert waiter is not None
        await waiter

    async def leave_a_waiter() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()

    run(leave_a_waiter())  # its loop is closed before the event is set

    async def main() -> None:
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        threading.Thread(target=event.set).start()
        assert await asyncio.gather(*tasks, return_exceptions=True) == [
            mock.ANY,
            None,
            None,
        ]
        assert event.waiter() is None

    run(main())


def test_a_ring_between_the_look_and_the_wait_is_not_lost() -> None:
    async def main() -> None:
        bell = LoopBell()
        bell.arm()
        thread = threading.Thread(target=bell.ring)
        thread.start()
        thread.join(LIMIT_S)
        await bell.wait(LIMIT_S)
        # Armed again, it does not remember the earlier ring.
        bell.arm()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bell.wait(), 0.02)

    run(main())


def test_a_bell_that_is_not_armed_costs_the_loop_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell = LoopBell()
        with mock.patch.object(loop, "call_soon_threadsafe") as calls:
            bell.ring()
            assert calls.call_count == 0
            bell.arm()
            for _ in range(5):
                bell.ring()
            assert calls.call_count == 1

    run(main())
