"""AsyncConsumer and AsyncShareConsumer: iteration, run() with coroutines, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from catmq_client import (
    AssignedQueue,
    Consumer,
    Message,
    NewMessage,
    Producer,
    ShareConsumer,
    ShareMessage,
)
from catmq_client.aio import AsyncConsumer, AsyncShareConsumer
from catmq_client.errors import (
    Closed,
    CommitFailed,
    HandlerFailed,
    NotBuilt,
    NotFound,
    OptionError,
)
from catmq_client.reading import coroutines
from catmq_client.testing import FakeBroker
from tests.support.held import HeldTransport
from tests.support.loops import LIMIT_S, happens, run
from tests.support.simulated import SimulatedBroker

QUICK: dict[str, Any] = {
    "group": "g",
    "topics": ["t"],
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 20,
}
KINDS = [AsyncConsumer, AsyncShareConsumer]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker(session_timeout_ms=300_000)
    made.create_topic("t", queues=1)
    return made


@pytest.fixture
def shared() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("t", queues=1)
    made.subscribe("g", "t", mode="share")
    return made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stored(kind: Any, broker: SimulatedBroker, shared: FakeBroker) -> FakeBroker:
    """The broker of a kind of consumer, with group `g` and topic `t`."""
    if kind is AsyncShareConsumer:
        return shared
    broker.subscribe("g", "t")
    return broker


def send(broker: FakeBroker, count: int, *, keys: int = 0, topic: str = "t") -> None:
    """Send messages whose bodies are 0, 1, …, with keys in turn."""
    with Producer(transport=broker) as producer:
        producer.send_batch(
            topic,
            [
                NewMessage(b"%d" % n, key=str(n % keys) if keys else None)
                for n in range(count)
            ],
        )


def committed(broker: FakeBroker) -> int:
    return sum(broker.committed("g").values())


def number(message: Message) -> int:
    return int(message.body)


def failures(consumer: AsyncConsumer | AsyncShareConsumer) -> int:
    return consumer._reader._state.failed


class Held:
    """A coroutine handler that stays at work until it is released or cancelled."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.finished: list[int] = []
        self.release = asyncio.Event()
        # Set: a handler that is cancelled ends. Unset: it cleans up until then.
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, message: Message) -> None:
        self.begun.append(number(message))
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(number(message))
            await self.may_end.wait()
            raise
        self.finished.append(number(message))


@contextlib.asynccontextmanager
async def running(consumer: Any, handler: Any, **options: Any) -> Any:
    """Run a consumer in a task, which is stopped at the end of the block."""
    task = asyncio.create_task(consumer.run(handler, **options))
    try:
        yield task
    finally:
        consumer.stop()
        if isinstance(handler, Held):
            handler.release.set()
            handler.may_end.set()
        await asyncio.wait([task])


# Iteration.


def test_a_message_is_done_when_the_next_one_is_asked_for(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 3)

    async def main() -> list[int]:
        async with kind(transport=stored, **QUICK) as consumer:
            taken = [number(await anext(consumer)) for _ in range(2)]
        assert committed(stored) == 1, "the last one was not done"
        async with kind(transport=stored, **QUICK, consumer_timeout_ms=200) as consumer:
            return taken + [number(message) async for message in consumer]

    assert sorted(run(main())) == [0, 1, 1, 2]
    assert committed(stored) == 3


def test_poll_and_commit(kind: Any, stored: FakeBroker) -> None:
    send(stored, 10)

    async def main() -> None:
        async with kind(transport=stored, **QUICK) as consumer:
            messages = await consumer.poll(5, timeout_s=LIMIT_S)
            await consumer.commit()
            assert committed(stored) == len(messages) > 0
        with pytest.raises(Closed):
            await consumer.poll()
        assert [message async for message in consumer] == []

    run(main())


def test_a_task_that_is_cancelled_between_ring_and_hand_out_loses_nothing(
    kind: Any, stored: FakeBroker
) -> None:
    """Both the wake-up and the cancellation are in the queue of the loop."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with kind(transport=stored, **QUICK) as consumer:
            task = asyncio.create_task(anext(consumer))
            bell = await _armed(consumer)
            calls: list[Callable[..., object]] = []
            ring_in_loop = bell.ring_in_loop
            bell.ring_in_loop = lambda: calls.append(ring_in_loop)  # type: ignore[method-assign]
            await asyncio.to_thread(send, stored, 1)
            await happens(lambda: calls and consumer._reader._state.buffered)
            loop.call_soon(ring_in_loop)
            loop.call_soon(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            bell.ring_in_loop = ring_in_loop  # type: ignore[method-assign]
            assert number(await anext(consumer)) == 0
            await consumer.commit()
        assert committed(stored) == 1

    run(main())


async def _armed(consumer: Any) -> Any:
    """Return the bell of a consumer once a task waits for it."""
    await happens(lambda: consumer._bell is not None and consumer._bell._waiter is not None)
    return consumer._bell


def test_an_exception_in_the_loop_body_leaves_its_message_to_be_delivered_again(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 2)

    async def main() -> int:
        with pytest.raises(ZeroDivisionError):
            async with kind(transport=stored, **QUICK) as consumer:
                async for _ in consumer:
                    raise ZeroDivisionError
        async with kind(transport=stored, **QUICK) as consumer:
            first = await anext(consumer)
            return number(first)

    assert run(main()) == 0


def test_iteration_lets_other_tasks_run(broker: SimulatedBroker) -> None:
    broker.subscribe("g", "t")
    send(broker, 450)

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncConsumer(transport=broker, **QUICK) as consumer:
            await anext(consumer)
            await happens(lambda: consumer._reader._state.buffered)
            counter = asyncio.create_task(count())
            for _ in range(400):
                await anext(consumer)
            counter.cancel()
        return turns

    assert run(main()) >= 4


def test_two_tasks_at_once_are_an_error(kind: Any, stored: FakeBroker) -> None:
    async def handle(message: Message) -> None: ...

    async def main() -> None:
        async with kind(transport=stored, **QUICK) as consumer:
            task = asyncio.create_task(anext(consumer))
            await _armed(consumer)
            for use in (anext(consumer), consumer.poll(), consumer.run(handle)):
                with pytest.raises(OptionError, match="another task"):
                    await use
            send(stored, 1)
            assert number(await task) == 0

    run(main())


def test_a_loop_of_another_thread_is_an_error(kind: Any, stored: FakeBroker) -> None:
    async def main() -> None:
        async with kind(transport=stored, **QUICK) as consumer:
            task = asyncio.create_task(anext(consumer))
            await _armed(consumer)
            with pytest.raises(OptionError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(consumer.poll()))
            send(stored, 1)
            assert number(await task) == 0

    run(main())


def test_one_consumer_serves_one_loop_after_another(kind: Any, stored: FakeBroker) -> None:
    send(stored, 3)
    consumer = kind(transport=stored, **QUICK)

    async def take() -> int:
        return number(await anext(consumer))

    assert [run(take()) for _ in range(3)] == [0, 1, 2]

    async def wait_for_a_fourth() -> int:
        task = asyncio.create_task(take())
        await _armed(consumer)
        send(stored, 1)
        return await task

    assert run(wait_for_a_fourth()) == 0
    run(consumer.close())
    assert committed(stored) == 3


def test_a_loop_that_ends_while_a_task_waits_harms_no_thread(
    kind: Any, stored: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = kind(transport=stored, **QUICK)

    async def leave() -> None:
        task = asyncio.create_task(anext(consumer))
        await _armed(consumer)
        assert not task.done()

    run(leave())
    consumer._bell.arm()  # as if the ring came just before the loop was closed
    send(stored, 1)

    async def take() -> int:
        return number(await anext(consumer))

    assert run(take()) == 0
    run(consumer.close())
    assert "internal error" not in caplog.text


def test_errors_of_the_group_reach_the_task(broker: FakeBroker) -> None:
    async def main() -> None:
        async with AsyncConsumer(transport=broker, group="g", topics=["unknown"]) as one:
            with pytest.raises(NotFound):
                await anext(one)

    run(main())


def test_a_forked_child_may_not_use_a_consumer(kind: Any, stored: FakeBroker) -> None:
    consumer = kind(transport=stored, **QUICK)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(consumer.close())
            asyncio.run(consumer.poll())
        except Closed:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run(consumer.close())


def test_callbacks_run_in_the_loop_and_may_be_coroutines(broker: FakeBroker) -> None:
    broker.subscribe("g", "t")
    calls: list[tuple[str, AssignedQueue]] = []

    async def main() -> None:
        loop_thread = threading.get_ident()

        async def on_assigned(queues: list[AssignedQueue]) -> None:
            await asyncio.sleep(0)
            assert threading.get_ident() == loop_thread
            calls.append(("assigned", queues[0]))

        def on_revoked(queues: list[AssignedQueue]) -> None:
            assert asyncio.get_running_loop() and threading.get_ident() == loop_thread
            calls.append(("revoked", queues[0]))

        send(broker, 1)
        async with AsyncConsumer(
            transport=broker, **QUICK, on_assigned=on_assigned, on_revoked=on_revoked
        ) as consumer:
            await anext(consumer)
            assert [name for name, _ in calls] == ["assigned"]

    run(main())
    # close() runs in a thread, its callback in the loop.
    assert [name for name, _ in calls] == ["assigned", "revoked"]


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_a_wrong_callback_is_refused(broker: FakeBroker, name: str) -> None:
    def generator(queues: Any) -> Any:
        yield queues

    for wrong in (generator, 7, dict):
        with pytest.raises(OptionError, match=f"{name}="):
            AsyncConsumer(transport=broker, **QUICK, **{name: wrong})


def test_close_goes_on_when_its_task_is_cancelled(broker: SimulatedBroker) -> None:
    broker.subscribe("g", "t")
    send(broker, 2)
    held = HeldTransport(broker)

    async def main() -> None:
        consumer = AsyncConsumer(transport=held, **QUICK, enable_auto_commit=True)
        await anext(consumer)
        await anext(consumer)
        gate = held.hold("POST .*/commit")
        closing = asyncio.create_task(consumer.close())
        await happens(lambda: gate.held)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled() and committed(broker) == 0
        gate.open()
        await consumer.close()

    run(main())
    assert committed(broker) == 1
    assert not broker.find_group("g").members, "it has left the group"


# run().


@pytest.mark.parametrize("order", ["key", "queue"])
def test_messages_are_handled_in_order_and_keys_side_by_side(
    broker: SimulatedBroker, order: str
) -> None:
    broker.subscribe("g", "t")
    send(broker, 60, keys=6)
    at_work: defaultdict[Any, int] = defaultdict(int)
    got: defaultdict[Any, list[int]] = defaultdict(list)
    most = 0

    async def main() -> None:
        nonlocal most
        consumer = AsyncConsumer(transport=broker, **QUICK)

        async def handle(message: Message) -> None:
            nonlocal most
            slot = message.key if order == "key" else message.queue
            at_work[slot] += 1
            assert at_work[slot] == 1, "two messages of a slot at once"
            most = max(most, sum(at_work.values()))
            await asyncio.sleep(0)
            got[slot].append(number(message))
            at_work[slot] -= 1
            if sum(map(len, got.values())) == 60:
                consumer.stop()

        await consumer.run(handle, order=order)

    run(main())
    assert all(numbers == sorted(numbers) for numbers in got.values())
    assert len(got) == most == (6 if order == "key" else 1)
    assert committed(broker) == 60


def test_at_most_concurrency_handlers_are_at_work(kind: Any, stored: FakeBroker) -> None:
    send(stored, 20)

    async def main() -> None:
        consumer, handler = kind(transport=stored, **QUICK), Held()
        async with running(consumer, handler, concurrency=3):
            await happens(lambda: len(handler.begun) == 3)
            await asyncio.sleep(0.05)
            assert len(handler.begun) == 3
            handler.release.set()
            await happens(lambda: len(handler.finished) == 20)

    run(main())
    assert committed(stored) == 20


def test_a_batch_is_a_list_and_a_failed_batch_is_repeated_one_by_one(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 6)
    sizes: list[int] = []

    async def main() -> None:
        consumer = kind(transport=stored, **QUICK)

        async def handle(messages: list[Message]) -> None:
            sizes.append(len(messages))
            if len(messages) > 1:
                raise ValueError("one of them is wrong")
            if sizes.count(1) == 6:
                consumer.stop()

        await consumer.run(handle, batch=10, concurrency=1)

    run(main())
    assert sizes.count(1) == 6 and max(sizes) > 1
    assert committed(stored) == 6 and not stored.waiting("g")


def test_a_handler_that_raises_has_failed(kind: Any, stored: FakeBroker) -> None:
    send(stored, 3)

    async def main() -> None:
        consumer = kind(transport=stored, **QUICK)

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            if number(message) == 1:
                raise ValueError("wrong")

        async with running(consumer, handle):
            await happens(lambda: stored.waiting("g") and committed(stored) == 3)

    run(main())
    (failed,) = stored.waiting("g")
    assert "ValueError: wrong" in str(failed.error)


def test_a_coroutine_that_is_not_awaited_is_a_failure(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 1)

    async def store(message: Message) -> None: ...

    async def main() -> None:
        async def handle(message: Message) -> Any:
            return store(message)

        async with running(kind(transport=stored, **QUICK), handle):
            await happens(lambda: stored.waiting("g"))

    run(main())
    assert "neither awaited" in str(stored.waiting("g")[0].error)


def _plain(message: Message) -> None: ...


def _generator(message: Message) -> Any:
    yield message


async def _async_generator(message: Message) -> Any:
    yield message


class _Handler:
    async def __call__(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (_plain, "async def"),
        (lambda message: asyncio.sleep(0), "async def"),
        (_generator, "give a coroutine function, without yield"),
        (_async_generator, "give a coroutine function, without yield"),
        (_Handler, "a class would only be instantiated: give a coroutine function"),
        (None, "give a coroutine function, and not the result"),
    ],
)
def test_a_handler_that_is_no_coroutine_function_is_refused_before_anything_is_taken(
    kind: Any, stored: FakeBroker, wrong: Any, remedy: str
) -> None:
    send(stored, 1)

    async def main() -> int:
        async with kind(transport=stored, **QUICK) as consumer:
            with pytest.raises(OptionError, match=remedy):
                await consumer.run(wrong)
            for sizes in ({"concurrency": 0}, {"batch": 0}, {"concurrency": True}):
                with pytest.raises(OptionError, match="at least 1"):
                    await consumer.run(_Handler(), **sizes)
            # It is not closed.
            return number(await anext(consumer))

    assert run(main()) == 0


def test_context_variables_of_run_are_seen_and_those_of_a_handler_are_not(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 3)
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    seen: list[str] = []

    async def main() -> None:
        consumer = kind(transport=stored, **QUICK)

        async def handle(message: Message) -> None:
            seen.append(request.get())
            request.set(f"of message {number(message)}")
            if len(seen) == 3:
                consumer.stop()

        request.set("of run")
        await consumer.run(handle, concurrency=1)

    run(main())
    assert seen == ["of run"] * 3


def test_stop_lets_handlers_at_work_finish(kind: Any, stored: FakeBroker) -> None:
    send(stored, 3)

    async def main() -> None:
        consumer, handler = kind(transport=stored, **QUICK), Held()
        task = asyncio.create_task(consumer.run(handler, concurrency=2))
        await happens(lambda: len(handler.begun) == 2)
        threading.Thread(target=consumer.stop).start()
        await asyncio.sleep(0.02)
        handler.release.set()
        await task
        assert (handler.finished, handler.cancelled) == ([0, 1], [])

    run(main())
    assert committed(stored) == 2


def test_a_run_that_is_cancelled_gives_messages_back_and_counts_no_failure(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 5)

    async def main() -> None:
        consumer, handler = kind(transport=stored, **QUICK), Held()
        task = asyncio.create_task(consumer.run(handler, concurrency=3))
        await happens(lambda: len(handler.begun) == 3)
        handler.may_end.clear()
        task.cancel()
        await happens(lambda: len(handler.cancelled) == 3)
        assert not task.done(), "it waits for the handlers"
        handler.may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert failures(consumer) == 0
        async with kind(transport=stored, **QUICK, consumer_timeout_ms=300) as again:
            assert sorted([number(m) async for m in again]) == [0, 1, 2, 3, 4]

    run(main())
    assert not stored.waiting("g") and committed(stored) == 5


def test_the_end_of_a_loop_gives_messages_back_and_leaves_the_group(
    kind: Any, stored: FakeBroker
) -> None:
    """asyncio.run() cancels the handlers and run() in one go, the handlers perhaps first."""
    send(stored, 3)
    consumer = kind(transport=stored, **QUICK)

    async def main() -> list[int]:
        handler = Held()
        main.task = asyncio.create_task(consumer.run(handler))  # type: ignore[attr-defined]
        await happens(lambda: len(handler.begun) == 3)
        return handler.begun

    assert sorted(run(main())) == [0, 1, 2]
    assert failures(consumer) == 0 and not stored.waiting("g") and committed(stored) == 0
    assert consumer._reader._state.closed

    async def again() -> list[int]:
        async with kind(transport=stored, **QUICK, consumer_timeout_ms=300) as reader:
            return [number(message) async for message in reader]

    assert sorted(run(again())) == [0, 1, 2]


def test_a_task_group_that_fails_ends_run(kind: Any, stored: FakeBroker) -> None:
    send(stored, 1)

    async def main() -> None:
        consumer, handler = kind(transport=stored, **QUICK), Held()

        async def fail() -> None:
            await happens(lambda: handler.begun)
            raise ZeroDivisionError

        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                group.create_task(consumer.run(handler))
                group.create_task(fail())
        assert raised.group_contains(ZeroDivisionError)
        assert handler.cancelled == [0] and failures(consumer) == 0
        assert consumer._reader._state.closed

    run(main())


def test_a_handler_that_was_cancelled_from_within_has_failed(
    kind: Any, stored: FakeBroker
) -> None:
    send(stored, 1)

    async def main() -> None:
        async def handle(message: Message) -> None:
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner

        async with running(kind(transport=stored, **QUICK), handle) as task:
            await happens(lambda: stored.waiting("g"))
            assert not task.done()

    run(main())
    assert "not by its consumer" in str(stored.waiting("g")[0].error)


def test_a_handler_that_exceeds_its_time_is_cancelled_and_fails_when_it_has_ended(
    kind: Any, stored: FakeBroker
) -> None:
    stored.configure("g", "t", handler_timeout_ms=30)
    send(stored, 1)

    async def main() -> None:
        consumer, handler = kind(transport=stored, **QUICK), Held()
        handler.may_end.clear()
        async with running(consumer, handler):
            await happens(lambda: handler.cancelled)
            await asyncio.sleep(0.02)
            assert failures(consumer) == 0, "it is still at work"
            handler.may_end.set()
            await happens(lambda: stored.waiting("g"))

    run(main())
    assert "HandlerTimeout" in str(stored.waiting("g")[0].error)


def test_a_handler_whose_queue_is_lost_is_cancelled_and_has_not_failed(
    broker: SimulatedBroker,
) -> None:
    broker.subscribe("g", "t")
    send(broker, 1)

    async def main() -> None:
        consumer, handler = AsyncConsumer(transport=broker, **QUICK), Held()
        state = consumer._reader._state
        async with running(consumer, handler):
            await happens(lambda: handler.begun)
            with state.changed:
                (owned,) = state.queues.values()
                state.lose(owned)
                state.want_heartbeat()
            await happens(lambda: handler.cancelled == [0])
            # The queue is granted again, and its message comes at least once more.
            broker.expire("g", consumer.name)
            state.want_heartbeat()
            handler.release.set()
            await happens(lambda: handler.finished)
            assert failures(consumer) == 0

    run(main())


def test_a_revoked_queue_is_released_when_its_handler_has_ended(
    broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time limit of the release is far away, and the cancellation comes at once.
    monkeypatch.setattr(coroutines, "END_FRACTION", 1.0)
    monkeypatch.setattr(coroutines, "MAX_END_S", 3_600.0)
    broker.subscribe("g", "t")
    send(broker, 1)

    async def main() -> None:
        consumer, handler = AsyncConsumer(transport=broker, **QUICK), Held()
        state = consumer._reader._state
        async with running(consumer, handler):
            await happens(lambda: handler.begun)
            handler.may_end.clear()
            with state.changed:
                (owned,) = state.queues.values()
                state.revoke(owned)
            await happens(lambda: handler.cancelled)
            await asyncio.sleep(0.05)
            assert owned.at_work == 1 and not owned.lost
            handler.may_end.set()
            await happens(lambda: owned.lost)
            assert failures(consumer) == 0 and owned.committed == 0

    run(main())


def test_a_handler_at_work_for_too_long_loses_its_lease_and_is_cancelled(
    shared: FakeBroker,
) -> None:
    send(shared, 1)

    async def main() -> None:
        consumer = AsyncShareConsumer(transport=shared, **QUICK, max_processing_ms=40)
        handler = Held()
        async with running(consumer, handler):
            await happens(lambda: len(handler.cancelled) >= 1 and len(handler.begun) >= 2)
            handler.release.set()
            await happens(lambda: handler.finished)
            assert failures(consumer) == 0

    run(main())
    assert not shared.waiting("g") and committed(shared) == 1


def test_a_handler_whose_lease_is_lost_is_cancelled(shared: FakeBroker) -> None:
    send(shared, 2)

    async def main() -> None:
        consumer, handler = AsyncShareConsumer(transport=shared, **QUICK), Held()
        accepted: list[int] = []

        async def handle(message: ShareMessage) -> None:
            if number(message) == 1:
                # It works on after it has accepted its message, which nobody takes away.
                message.accept()
                await asyncio.sleep(0.2)
                accepted.append(1)
            else:
                await handler(message)

        book = consumer._reader._state
        async with running(consumer, handle):
            await happens(lambda: handler.begun)
            with book.changed:
                for leased in [*book.runs.values()]:
                    book.lose(leased)
            await happens(lambda: handler.cancelled and accepted)
            handler.release.set()
            assert failures(consumer) == 0

    run(main())


def test_share_messages_may_be_settled_by_the_handler(shared: FakeBroker) -> None:
    send(shared, 4)

    async def main() -> None:
        consumer = AsyncShareConsumer(transport=shared, **QUICK)
        seen: list[int] = []

        async def handle(message: ShareMessage) -> None:
            seen.append(number(message))
            if number(message) == 1:
                message.reject("no")
            elif number(message) == 2 and message.deliveries == 1:
                message.release()

        async with running(consumer, handle):
            await happens(lambda: seen.count(2) == 2 and committed(shared) == 4)

    run(main())
    assert len(shared.dead("g")) == 1


def test_a_handler_that_blocks_the_loop_is_named(
    kind: Any,
    stored: FakeBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coroutines, "BLOCKED_S", 0.05)
    send(stored, 1)
    warned = threading.Event()

    async def main() -> None:
        consumer = kind(transport=stored, **QUICK)

        async def blocking_handler(message: Message) -> None:
            deadline = time.monotonic() + LIMIT_S
            while "blocks the event loop" not in caplog.text:
                assert time.monotonic() < deadline
                warned.wait(0.01)
            consumer.stop()

        await consumer.run(blocking_handler)

    run(main())
    assert "blocking_handler blocks the event loop" in caplog.text
    assert "tests/unit/test_aio_consumers.py" in caplog.text
    assert committed(stored) == 1


def test_system_exit_of_a_handler_ends_run(kind: Any, stored: FakeBroker) -> None:
    send(stored, 1)
    consumer = kind(transport=stored, **QUICK)

    async def handle(message: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(consumer.run(handle))
    assert consumer._reader._state.closed and failures(consumer) == 0
    assert committed(stored) == 0


def test_a_queue_that_halts_ends_run_with_the_failure(broker: SimulatedBroker) -> None:
    broker.subscribe("g", "t")
    broker.fail("POST .*/failures", NotBuilt("none", code="no_failure_topic"), times=99)
    send(broker, 2)

    async def main() -> None:
        consumer = AsyncConsumer(transport=broker, **QUICK)

        async def handle(message: Message) -> None:
            raise ValueError("wrong")

        with pytest.raises(HandlerFailed):
            await consumer.run(handle)

    run(main())


def test_commit_of_a_moved_queue_is_told(broker: SimulatedBroker) -> None:
    broker.subscribe("g", "t")
    send(broker, 2)

    async def main() -> None:
        async with AsyncConsumer(transport=broker, **QUICK) as consumer:
            await anext(consumer)
            state = consumer._reader._state
            with state.changed:
                (owned,) = state.queues.values()
                state.lose(owned)
            with pytest.raises(CommitFailed):
                await consumer.commit()

    run(main())


# Coroutine handlers of the plain consumers.


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_run_of_a_plain_consumer_takes_a_coroutine_function(
    kind: Any, broker: SimulatedBroker, shared: FakeBroker
) -> None:
    stored: FakeBroker = broker if kind is Consumer else shared
    if kind is Consumer:
        stored.subscribe("g", "t")
    send(stored, 30)
    consumer = kind(transport=stored, **QUICK)
    loops: set[asyncio.AbstractEventLoop] = set()
    threads: set[int] = set()
    handled: list[int] = []
    most = at_work = 0

    async def handle(message: Message) -> None:
        nonlocal at_work, most
        loops.add(asyncio.get_running_loop())
        threads.add(threading.get_ident())
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        handled.append(number(message))
        if len(handled) == 30:
            consumer.stop()

    consumer.run(handle, threads=4)
    assert sorted(handled) == list(range(30)) and committed(stored) == 30
    # One loop, in the thread of run().
    assert len(loops) == 1 and threads == {threading.get_ident()} and most == 4


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_run_of_a_plain_consumer_in_a_loop_names_the_other_class(
    kind: Any, broker: FakeBroker
) -> None:
    async def handle(message: Message) -> None: ...

    async def main() -> None:
        consumer = kind(transport=broker, **QUICK)
        with pytest.raises(OptionError, match=f"aio.Async{kind.__name__}"):
            consumer.run(handle)

    run(main())
