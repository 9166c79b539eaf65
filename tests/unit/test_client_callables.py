"""Functions of applications: one that would do nothing when it is called is refused, or has
failed.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from asgiref.sync import async_to_sync

from catmq_client import Consumer, Producer, ShareConsumer
from catmq_client.callables import (
    check_callable,
    check_coroutine_function,
    check_handled,
    check_result,
)
from catmq_client.errors import OptionError
from catmq_client.testing import FakeBroker

LIMIT_S = 10.0


class Handler:
    def handle(self, message: Any) -> None: ...
    async def handle_async(self, message: Any) -> None: ...


class AsyncHandler:
    async def __call__(self, message: Any) -> None: ...


class StaticAsyncHandler:
    @staticmethod
    async def __call__(message: Any) -> None: ...


class YieldingHandler:
    def __call__(self, message: Any) -> Any:
        yield


async def coroutine(message: Any) -> None: ...


def generator(message: Any) -> Any:
    yield


async def async_generator(message: Any) -> Any:
    yield


def plain(message: Any) -> None: ...


COROUTINES = [
    coroutine,
    functools.partial(coroutine, None),
    functools.partial(functools.partial(coroutine)),
    Handler().handle_async,
    functools.partial(Handler().handle_async),
    AsyncHandler(),
    functools.partial(AsyncHandler()),
    StaticAsyncHandler(),
    AsyncMock(),
]
USELESS = [
    generator,
    functools.partial(generator),
    YieldingHandler(),
    async_generator,
    Handler,
    functools.partial(Handler),
    None,
    "handle",
]
LAZY = COROUTINES + USELESS


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("t", queues=1)
    return made


@pytest.mark.parametrize("function", LAZY, ids=repr)
def test_a_function_that_would_do_nothing_is_refused(function: Any) -> None:
    with pytest.raises(OptionError, match="handler="):
        check_callable("handler", function)


@pytest.mark.parametrize(
    "function",
    [
        plain,
        functools.partial(plain),
        Handler().handle,
        [].append,
        print,
        MagicMock(),
        async_to_sync(coroutine),
    ],
    ids=repr,
)
def test_a_function_that_does_its_work_is_taken(function: Any) -> None:
    check_callable("handler", function)


@pytest.mark.parametrize("function", COROUTINES, ids=repr)
def test_a_coroutine_function_is_taken_where_it_is_awaited(function: Any) -> None:
    check_coroutine_function("handler", function)


@pytest.mark.parametrize("function", [*USELESS, plain, Handler().handle, print], ids=repr)
def test_anything_else_is_refused_where_it_is_awaited(function: Any) -> None:
    with pytest.raises(OptionError, match="handler="):
        check_coroutine_function("handler", function)


def test_the_remedy_names_the_kind_of_function_that_is_awaited() -> None:
    async def events(message: object) -> AsyncIterator[object]:
        yield message

    with pytest.raises(OptionError, match="give a coroutine function, without yield"):
        check_coroutine_function("handler", events)
    with pytest.raises(OptionError, match="not the result of calling it"):
        check_coroutine_function("handler", plain(1))


def error_of_a_message(
    broker: FakeBroker, kind: Any, handler: Any, *, batch: int | None = None
) -> str:
    """Return the error with which a message fails that a consumer hands to the handler."""
    with Producer(transport=broker) as producer:
        producer.send("t", "1")
    consumer = kind(transport=broker, group="g", topics=["t"])
    thread = threading.Thread(target=lambda: consumer.run(handler, batch=batch))
    thread.start()
    try:
        assert broker.wait_until(lambda: "g" in broker.groups and bool(broker.waiting("g")))
    finally:
        consumer.stop()
        thread.join(LIMIT_S)
    (failed,) = broker.waiting("g")
    return str(failed.error)


@pytest.mark.parametrize("lazy", [coroutine, generator, async_generator, AsyncMock()])
def test_a_result_that_nobody_awaits_is_refused(lazy: Any) -> None:
    with pytest.raises(OptionError, match="the handler returned"):
        check_result("the handler", lazy(None))


@pytest.mark.parametrize(
    "lazy",
    [map(print, "a"), filter(None, "a"), itertools.starmap(print, ["a"]), generator(None)],
)
def test_an_iterator_that_nobody_iterates_is_refused(lazy: Any) -> None:
    with pytest.raises(OptionError, match="the handler returned"):
        check_handled(lazy)


def test_other_results_are_taken() -> None:
    for result in (None, 0, "done", [], MagicMock()):
        check_handled(result)
    check_result("the callback", Future())  # it may start work elsewhere


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
@pytest.mark.parametrize("batch", [None, 10])
def test_a_message_whose_handler_only_started_its_work_has_failed(
    broker: FakeBroker, kind: Any, batch: int | None
) -> None:
    """As with asyncio.run_coroutine_threadsafe() and executor.submit()."""
    assert ".result()" in error_of_a_message(
        broker, kind, lambda messages: Future(), batch=batch
    )


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
@pytest.mark.parametrize("batch", [None, 10])
def test_run_refuses_before_it_joins_the_group(
    broker: FakeBroker, kind: Any, batch: int | None
) -> None:
    with kind(transport=broker, group="g", topics=["t"]) as consumer:
        consumer.stop()  # a run that is not refused ends at once
        for function in USELESS:
            with pytest.raises(OptionError, match="handler="):
                consumer.run(function, batch=batch)
    assert broker.requests == []


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
@pytest.mark.parametrize("lazy", [coroutine, generator])
def test_a_message_whose_handler_returned_a_coroutine_has_failed(
    broker: FakeBroker, kind: Any, lazy: Any
) -> None:
    assert "asyncio.run" in error_of_a_message(broker, kind, lambda message: lazy(message))


def test_a_fake_broker_does_not_wait_for_a_coroutine(broker: FakeBroker) -> None:
    with pytest.raises(OptionError, match="true="):
        broker.wait_until(AsyncMock(return_value=False))
    with pytest.raises(OptionError, match="what="):
        broker.change(AsyncMock())


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_callbacks_of_a_consumer_are_refused(broker: FakeBroker, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}="):
        Consumer(transport=broker, group="g", topics=["t"], **{name: coroutine})


def test_a_callback_of_a_consumer_that_returns_a_coroutine_is_told(
    broker: FakeBroker,
) -> None:
    lazy: Any = lambda queues: coroutine(queues)  # noqa: E731
    consumer = Consumer(transport=broker, group="g", topics=["t"], on_assigned=lazy)
    with consumer, pytest.raises(OptionError, match="on_assigned returned"):
        consumer.poll(timeout_s=LIMIT_S)


def test_callbacks_of_a_send_are_refused_and_told(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(transport=broker) as producer:
        future = producer.send_async("t", "1")
        with pytest.raises(OptionError, match="callback="):
            future.add_done_callback(coroutine)
        future.add_done_callback(lambda sent: coroutine(sent))
        producer.flush(LIMIT_S)
    assert "the callback returned" in caplog.text
