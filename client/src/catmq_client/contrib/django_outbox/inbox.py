"""Handling each message once: a row of the inbox is committed together with the handler's
changes of the database.

Brokers deliver at least once: a message comes again if its commit was lost or its owner
died. The second handler finds the row and does nothing. If two handlers have the message at
the same time, the INSERT of the second waits for the transaction of the first. Then it fails
because the row exists, or succeeds because the first was rolled back.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, overload

from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.conf import settings
from django.db import IntegrityError, router, transaction

from catmq_client.callables import check_callable, check_handled, is_coroutine_function
from catmq_client.contrib.django_outbox import conf
from catmq_client.contrib.django_outbox.ids import is_id_of
from catmq_client.contrib.django_outbox.models import (
    MAX_IDENTITY,
    MAX_SCOPE,
    InboxMessage,
    UtcNow,
)
from catmq_client.contrib.django_outbox.outbox import check_other_transactions
from catmq_client.contrib.django_outbox.transaction_retries import run_transaction
from catmq_client.errors import OptionError
from catmq_client.message import Message
from catmq_client.sending.new_messages import OUTBOX_ID_HEADER

R = TypeVar("R")

PRUNE_EVERY = 1_000  # messages of this process
# More rows than are added between two prunes, so the table keeps no more than INBOX_DAYS.
PRUNE_ROWS = 5_000


def identity(message: Message) -> str:
    """Return the id that the inbox stores for a message.

    For a message of an outbox: the outbox id, which is the same if the outbox stored the
    message twice. For other messages: topic, queue and offset where it was first stored, so
    that a copy in a retry topic has the same id.
    """
    outbox_id = message.headers.get(OUTBOX_ID_HEADER)
    if outbox_id is not None and is_id_of(
        outbox_id, message.topic, message.key, message.body
    ):
        return outbox_id
    origin = message.origin or message
    return f"{origin.topic}/{origin.queue}-{origin.offset}"


@contextmanager
def once(message: Message, *, scope: str = "", using: str | None = None) -> Iterator[bool]:
    """Open a transaction and yield True if the message is new. If it is not, the block has
    nothing to do.

        with once(message, scope="billing") as new:
            if new:
                Invoice.objects.create(...)

    An exception rolls everything back: the message is then new again. Use a `scope` for each
    of several handlers of the same messages in one database, such as two consumer groups,
    and for each of several installations of CatMQ, whose topics, queues and offsets may be
    the same. `using` is the database alias, which must be that of the rows that the handler
    changes. Raises OutsideTransaction in a transaction of another database.
    """
    if len(scope) > MAX_SCOPE:
        raise OptionError(
            f"scope has {len(scope)} characters: at most {MAX_SCOPE} are allowed"
        )
    alias = using or router.db_for_write(InboxMessage)
    check_other_transactions("the inbox", alias)
    with transaction.atomic(using=alias):
        yield _record(alias, scope, message)
        transaction.on_commit(lambda: _prune_sometimes(alias), using=alias, robust=True)


class HandledOnce(Protocol):
    """The decorator that handled_once() returns."""

    @overload
    def __call__(
        self, handler: Callable[[Message], Coroutine[Any, Any, R]]
    ) -> Callable[[Message], Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(
        self, handler: Callable[[Message], R]
    ) -> Callable[[Message], R | None]: ...


def handled_once(*, scope: str = "", using: str | None = None) -> HandledOnce:
    """Decorate a handler so that it runs once for each message, in a transaction. It is not
    called for a message that it has handled before.

        @handled_once(scope="billing")
        def handle(message): ...

        consumer.run(handle)

    The handler may be a coroutine function. Its transaction is opened in a thread, and the
    asynchronous methods of Django's ORM use that thread, so they belong to the transaction.
    Each such call has a connection of its own to the database, which is closed at the end.

    The handler is called again if the database rolled the transaction back because of a
    deadlock, or because a row had changed since it was read (MariaDB 11.6 and later, at
    REPEATABLE READ). Raises OptionError for a generator function or a class. A plain function
    that returns a coroutine has failed, and its message is new again.
    """

    def decorate(handler: Callable[[Message], Any]) -> Callable[[Message], Any]:
        if is_coroutine_function(handler):
            # Called in the thread of the transaction. The coroutine runs in the loop that
            # waits for this thread.
            handle_in_transaction = run_once(async_to_sync(handler))

            def run_and_close(message: Message) -> Any:
                try:
                    return handle_in_transaction(message)
                finally:
                    _close_connections()

            async def handle_async(message: Message) -> Any:
                # A thread for each call: by default all code of Django shares a single thread,
                # and the transactions would wait for each other.
                async with ThreadSensitiveContext():
                    return await sync_to_async(run_and_close)(message)

            return functools.wraps(handler)(handle_async)
        check_callable("handler", handler)
        return run_once(handler)

    def run_once(handler: Callable[[Message], Any]) -> Callable[[Message], Any]:
        @functools.wraps(handler)
        def handle(message: Message) -> Any:
            def work() -> Any:
                with once(message, scope=scope, using=using) as is_new:
                    if not is_new:
                        return None
                    result = handler(message)
                    # Inside the block, so that an error rolls the inbox row back.
                    check_handled(result)
                    return result

            return run_transaction(work, using or router.db_for_write(InboxMessage))

        return handle

    return decorate


def _close_connections() -> None:
    """Close the database connections of a thread that ends."""
    for alias in settings.DATABASES:
        connection = transaction.get_connection(alias)
        # Under async_to_sync(), as in Django's tests, the thread is the caller's, and so is
        # the transaction.
        if not connection.in_atomic_block:
            connection.close()


def _record(alias: str, scope: str, message: Message) -> bool:
    """Insert the row of a message. Return False if the message was handled before."""
    # The hash has only characters that every collation distinguishes, so `billing` and
    # `Billing` are two scopes, and any text fits. The scope column is only for people.
    row = InboxMessage(
        scope=scope.encode("ascii", "backslashreplace")
        .decode()
        .replace("\0", "?")[:MAX_SCOPE],
        identity=_hash(scope, identity(message)),
        handled_at=UtcNow(),
    )
    try:
        # A savepoint: on PostgreSQL an error would make the whole transaction unusable.
        with transaction.atomic(using=alias):
            row.save(using=alias, force_insert=True)
    except IntegrityError:
        return False
    # Releases up to 0.1 stored scope and id without a hash. The id was the outbox header, or
    # else queue and offset of this delivery.
    message_id = message.headers.get(OUTBOX_ID_HEADER) or message.message_id
    if len(message_id) > MAX_IDENTITY or "\0" in scope + message_id:
        return True  # the column could not store such an id
    rows = InboxMessage.objects.using(alias).filter(scope=scope, identity=message_id)
    # Compared again in Python: a collation may take different texts for equal.
    return (scope, message_id) not in rows.values_list("scope", "identity")


def _hash(scope: str, message_id: str) -> str:
    # With the scope's length: no two pairs of scope and id have the same text.
    return hashlib.sha256(
        f"{len(scope)} {scope} {message_id}".encode(errors="surrogatepass")
    ).hexdigest()


def prune(*, using: str | None = None, rows: int = PRUNE_ROWS) -> int:
    """Delete up to `rows` messages that are older than INBOX_DAYS. Return their number."""
    alias = using or router.db_for_write(InboxMessage)
    messages = InboxMessage.objects.using(alias)
    expired = messages.filter(
        handled_at__lt=UtcNow() - timedelta(days=conf.current().inbox_days)
    ).order_by("handled_at")
    # Two statements: MySQL has no LIMIT in a subquery of IN.
    ids = list(expired.values_list("pk", flat=True)[:rows])
    return messages.filter(pk__in=ids).delete()[0]


# Numbers the messages of this process, from 0. `next` of a counter is atomic.
_message_numbers = itertools.count()


def _prune_sometimes(alias: str) -> None:
    # Message 0 prunes, so that short-lived processes prune, too.
    if next(_message_numbers) % PRUNE_EVERY == 0:
        prune(using=alias)
