"""Handling once: a row of the inbox is committed together with what the handler did to the
database.

Brokers deliver at least once. Who handles a message again, because its commit was lost or
its owner died, finds the row and does nothing. Two who handle it at the same time: the
second waits for the first's transaction, and then finds the row, or makes it when that was
rolled back.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from django.db import IntegrityError, router, transaction

from catmq_client.callables import check_callable, check_handled
from catmq_client.contrib.django_outbox import conf
from catmq_client.contrib.django_outbox.ids import is_id_of
from catmq_client.contrib.django_outbox.models import (
    MAX_IDENTITY,
    MAX_SCOPE,
    InboxMessage,
    UtcNow,
)
from catmq_client.contrib.django_outbox.outbox import check_other_transactions
from catmq_client.contrib.django_outbox.repeats import repeated
from catmq_client.errors import OptionError
from catmq_client.message import Message
from catmq_client.sending.new_messages import OUTBOX_ID_HEADER

R = TypeVar("R")

PRUNE_EVERY = 1_000  # messages of this process
# at once: more than come in between, so the table cannot outgrow its days
PRUNE_ROWS = 5_000


def identity(message: Message) -> str:
    """Return the id by which the inbox knows a message.

    It is the id that an outbox gave it, which it keeps if the outbox stored it twice; else
    the topic, queue and offset at which it was first stored, also for a copy in a retry
    topic.
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
    """A transaction that yields whether the message is new here; if not, the block has
    nothing to do.

        with once(message, scope="billing") as new:
            if new:
                Invoice.objects.create(...)

    An exception rolls everything back: the message is then new again. `scope` tells apart
    those that handle the same messages in one database, such as two consumer groups, or
    messages of two installations of CatMQ, whose topics, queues and offsets may be the
    same. `using`: the database alias, which must be that of the rows that the handler
    changes. Raises OutsideTransaction in a transaction of another database.
    """
    if len(scope) > MAX_SCOPE:
        raise OptionError(
            f"scope has {len(scope)} characters: at most {MAX_SCOPE} are allowed"
        )
    alias = using or router.db_for_write(InboxMessage)
    check_other_transactions("the inbox", alias)
    with transaction.atomic(using=alias):
        yield _is_new(alias, scope, message)
        transaction.on_commit(lambda: _prune_sometimes(alias), using=alias, robust=True)


def handled_once(
    *, scope: str = "", using: str | None = None
) -> Callable[[Callable[[Message], R]], Callable[[Message], R | None]]:
    """Make a handler run once for each message, in a transaction; it is not called for one
    it had before.

    @handled_once(scope="billing") def handle(message): ...

    consumer.run(handle)

    Raises OptionError for a coroutine function, a generator function or a class. A handler
    that returns a coroutine has failed, and its message is new again.

    It is called again if the database rolled the transaction back: for a deadlock, or
    because a row had changed since it was read (MariaDB 11.6 and later, at REPEATABLE
    READ).
    """

    def decorate(handler: Callable[[Message], R]) -> Callable[[Message], R | None]:
        check_callable("handler", handler)

        @functools.wraps(handler)
        def handle(message: Message) -> R | None:
            def work() -> R | None:
                with once(message, scope=scope, using=using) as new:
                    if not new:
                        return None
                    result = handler(message)
                    check_handled(result)  # in here, so that the inbox row is rolled back
                    return result

            return repeated(work, using or router.db_for_write(InboxMessage))

        return handle

    return decorate


def _is_new(alias: str, scope: str, message: Message) -> bool:
    # A hash has only characters that every collation tells apart, so `billing` and
    # `Billing` are two scopes;
    # and any text fits. The scope stands there for people.
    readable = (
        scope.encode("ascii", "backslashreplace").decode().replace("\0", "?")[:MAX_SCOPE]
    )
    row = InboxMessage(
        scope=readable, identity=_hash(scope, identity(message)), handled_at=UtcNow()
    )
    try:
        # a savepoint: PostgreSQL ends a transaction at an error
        with transaction.atomic(using=alias):
            row.save(using=alias, force_insert=True)
    except IntegrityError:
        return False
    return not _was_recorded_by_an_earlier_release(alias, scope, message)


def _hash(scope: str, name: str) -> str:
    return hashlib.sha256(
        f"{len(scope)} {scope} {name}".encode(errors="surrogatepass")
    ).hexdigest()


def _was_recorded_by_an_earlier_release(alias: str, scope: str, message: Message) -> bool:
    """Return True if the message was handled before the upgrade; then its row has scope and
    id as they are.

    Releases up to 0.1 took the header as the id, else queue and offset where the message
    was delivered from.
    """
    name = message.headers.get(OUTBOX_ID_HEADER) or message.message_id
    if len(name) > MAX_IDENTITY or "\0" in scope + name:
        return False  # no column took that
    rows = InboxMessage.objects.using(alias).filter(scope=scope, identity=name)
    # Collations may take other names for the same.
    return (scope, name) in rows.values_list("scope", "identity")


def prune(*, using: str | None = None, rows: int = PRUNE_ROWS) -> int:
    """Delete up to so many messages that are older than INBOX_DAYS; return their number."""
    alias = using or router.db_for_write(InboxMessage)
    kept = timedelta(days=conf.current().inbox_days)
    old = (
        InboxMessage.objects.using(alias)
        .filter(handled_at__lt=UtcNow() - kept)
        .order_by("handled_at")
    )
    ids = list(old.values_list("pk", flat=True)[:rows])
    deleted, _ = InboxMessage.objects.using(alias).filter(pk__in=ids).delete()
    return deleted


class _Turns:
    """Counts the messages of this process. The first one prunes, so that short-lived
    processes do, too.
    """

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0

    def mine(self) -> bool:
        with self._lock:
            self._count += 1
            return self._count % PRUNE_EVERY == 1


_turns = _Turns()


def _prune_sometimes(alias: str) -> None:
    if _turns.mine():
        prune(using=alias)
