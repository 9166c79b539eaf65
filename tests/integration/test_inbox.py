"""The inbox: what a handler does to the database happens once, however often its message
comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from catmq_client import Message
from catmq_client.contrib.django_outbox import inbox
from catmq_client.contrib.django_outbox.ids import new_id
from catmq_client.contrib.django_outbox.inbox import handled_once, once
from catmq_client.contrib.django_outbox.models import InboxMessage, UtcNow
from catmq_client.errors import OptionError
from catmq_client.message import Source, make_row
from catmq_client.sending.new_messages import (
    DELAYED_ID_HEADER,
    OUTBOX_ID_HEADER,
    build_message,
)
from tests.support import outboxes


@pytest.fixture(autouse=True)
def empty(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        outboxes.forget_all()
        yield
        outboxes.forget_all()
        connections.close_all()


def message(offset: int = 0, headers: dict[str, str] | None = None) -> Message:
    view = {
        "offset": offset,
        "message_id": f"7-{offset}",
        "body_bytes": b"",
        "headers": headers,
        "stored_at_ms": 0,
    }
    return Message(Source("t", 7, 1), make_row(view))


def test_a_message_that_comes_again_is_not_handled_again() -> None:
    handled = []

    @handled_once(scope="billing")
    def handle(message: Message) -> str:
        handled.append(message.offset)
        return "done"

    assert [handle(message(1)), handle(message(1)), handle(message(2))] == [
        "done",
        None,
        "done",
    ]
    assert handled == [1, 2]


def test_a_handler_that_failed_is_called_again() -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), once(message()) as new:
            assert new
            raise ZeroDivisionError
    with once(message()) as new:
        assert new


def test_a_handler_that_would_do_nothing_is_refused() -> None:
    async def generate(message: Message) -> Any:
        yield message

    class Handler: ...

    for function in (generate, Handler):
        with pytest.raises(OptionError, match="handler="):
            handled_once()(function)


def test_a_coroutine_that_handles_a_message_is_in_the_transaction_of_its_row() -> None:
    @handled_once(scope="billing")
    async def handle(message: Message) -> str:
        assert await sync_to_async(lambda: transaction.get_connection().in_atomic_block)()
        await InboxMessage.objects.acreate(
            scope="own", identity=str(message.offset), handled_at=UtcNow()
        )
        if message.offset == 1:
            raise ZeroDivisionError
        return "done"

    async def main() -> list[Any]:
        with pytest.raises(ZeroDivisionError):
            await handle(message(1))
        return [await handle(message(2)), await handle(message(2))]

    assert asyncio.run(main()) == ["done", None]
    # Its own row was rolled back with the row of the inbox.
    assert [
        *InboxMessage.objects.filter(scope="own").values_list("identity", flat=True)
    ] == ["2"]


def test_a_coroutine_that_is_cancelled_leaves_its_message_new() -> None:
    async def main() -> None:
        is_at_work = asyncio.Event()

        @handled_once()
        async def handle(message: Message) -> None:
            is_at_work.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(handle(message()))
        await asyncio.wait_for(is_at_work.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with once(message()) as new:
        assert new


def test_a_message_whose_handler_returned_a_coroutine_is_still_new() -> None:
    async def work() -> None: ...

    with pytest.raises(OptionError, match="the handler returned"):
        _ = handled_once()(lambda message: work())(message())
    with once(message()) as new:
        assert new


def test_two_scopes_know_nothing_of_each_other() -> None:
    for scope in ("billing", "stock"):
        with once(message(), scope=scope) as new:
            assert new


def is_new(given: Message, scope: str = "") -> bool:
    with once(given, scope=scope) as new:
        return new


def test_a_message_that_an_outbox_stored_twice_is_one_message() -> None:
    headers = {OUTBOX_ID_HEADER: new_id("t", None, b"")}
    assert [is_new(message(offset, headers)) for offset in (1, 2)] == [True, False]


def test_messages_that_were_forwarded_with_all_headers_are_different_messages() -> None:
    received = {OUTBOX_ID_HEADER: new_id("from", None, b""), "h": "v"}
    assert [is_new(message(offset, received)) for offset in (1, 2, 1)] == [
        True,
        True,
        False,
    ]
    sent = build_message(b"", headers=received | {DELAYED_ID_HEADER: "d-1"})
    assert sent["headers"] == {"h": "v"}, "a producer does not pass on reserved headers"


def test_a_copy_in_a_retry_topic_is_the_message_that_failed() -> None:
    origin = {"topic": "t", "queue": 7, "offset": 3}
    retried = Message(
        Source("t", 9, 1),
        make_row({"offset": 0, "body_bytes": b"", "stored_at_ms": 0}),
        origin,
    )
    assert [is_new(one) for one in (message(3), retried, message(0))] == [True, False, True]


@pytest.mark.parametrize("scope", ["", "billing", "x" * 200])
def test_a_message_that_an_earlier_release_recorded_is_not_handled_again(
    scope: str,
) -> None:
    of_outbox = {OUTBOX_ID_HEADER: "01a214c7-dafd-70cb-8cef-51b08680acc4"}
    for name in ("7-1", of_outbox[OUTBOX_ID_HEADER]):
        InboxMessage.objects.create(
            scope=scope, identity=name, handled_at="2026-11-01 00:00:00+00:00"
        )
    found = [is_new(one, scope) for one in (message(1), message(5, of_outbox), message(2))]
    assert found == [False, False, True]


def test_names_that_a_collation_takes_for_the_same_are_different() -> None:
    scopes = ["billing", "Billing", "billing ", "bílling", "billing\0", "💶", "b", "b b"]
    assert [is_new(message(), scope) for scope in scopes * 2] == [True] * 8 + [False] * 8
    InboxMessage.objects.all().delete()
    InboxMessage.objects.create(
        scope="billing", identity="7-1", handled_at="2026-11-01 00:00:00+00:00"
    )
    assert [is_new(message(1), scope) for scope in ("Billing", "billing", "billing ")] == [
        True,
        False,
        True,
    ]


def test_of_two_who_handle_a_message_at_once_the_second_waits_and_then_does_nothing() -> (
    None
):
    inside, may_end = threading.Event(), threading.Event()

    def first() -> bool:
        with once(message()) as new:
            inside.set()
            assert may_end.wait(10)
        connections.close_all()
        return new

    def second() -> bool:
        assert inside.wait(10)
        may_end.set()
        with once(message()) as new:
            pass
        connections.close_all()
        return new

    with ThreadPoolExecutor(2) as pool:
        assert [one.result() for one in [pool.submit(first), pool.submit(second)]] == [
            True,
            False,
        ]


def test_old_rows_are_forgotten_a_bounded_number_at_once() -> None:
    old = [
        InboxMessage(scope="", identity=str(n), handled_at="2020-01-01 00:00:00+00:00")
        for n in range(5)
    ]
    InboxMessage.objects.bulk_create(old)
    with once(message()):
        pass
    inbox.prune(rows=3)
    inbox.prune(rows=3)
    assert [row.identity for row in InboxMessage.objects.all()] == [
        inbox._hash("", "t/7-0")
    ]
