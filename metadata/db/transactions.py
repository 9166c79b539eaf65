"""One way to change metadata: a transaction that is repeated when the database undid it.

Every transaction that touches a group locks the group's row before anything else (several:
rising ids) and decides on rows read after that; `changes.changed` comes last, because it
locks the one row that all changes share. With that order deadlocks are rare, and a
transaction that meets one was rolled back whole and is simply run again.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, transaction
from django.db.models import Model, QuerySet

from metadata.config import config
from metadata.db.contact import contact
from metadata.errors import MetadataUnavailable
from metadata.outages import Outage

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Model)
PAGE = 100  # rows that a sweep reads at once
log = logging.getLogger(__name__)

_outage = Outage(log, "the metadata database")

TRIES = 3
# deadlock, lock wait timeout, record changed since read (MariaDB)
ROLLED_BACK = {1213, 1205, 1020}


class _Mine(threading.local):
    # Most threads never ask the metadata, and to look at each alias for nothing costs as
    # much as a small
    # answer. On SQLite the backend is Django's own, which does not say that it connects.
    has_connected = config.database is None


_mine = _Mine()


def note_connection() -> None:
    """Say that this thread has connected; the backend calls this."""
    _mine.has_connected = True


def release_connections() -> None:
    """Give the connections of this thread back, at the end of a request."""
    if _mine.has_connected:
        close_old_connections()


def transactional(work: Callable[P, T]) -> Callable[P, T]:
    """Run `work` in one transaction on the metadata database, up to three times if it was
    rolled back.

    Inside another transaction it simply joins. Raises MetadataUnavailable when the database
    is away.
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if transaction.get_connection().in_atomic_block:
            return work(*args, **kwargs)
        with reachable():
            return _repeat(functools.partial(work, *args, **kwargs))

    return run


def _repeat(work: Callable[[], T]) -> T:
    for attempt in range(1, TRIES + 1):
        try:
            with transaction.atomic():
                return work()
        except OperationalError as error:
            if attempt == TRIES or not was_rolled_back(error):
                raise
            log.info(
                "metadata transaction rolled back, try %d follows: %s", attempt + 1, error
            )
            time.sleep(random.uniform(0.005, 0.05) * attempt)
    raise AssertionError("not reached")


def was_rolled_back(error: OperationalError) -> bool:
    """Return True if the database undid the transaction and repeating it is safe."""
    code = error.args[0] if error.args else None
    return code in ROLLED_BACK


def lacks_schema(error: Exception) -> bool:
    code = error.args[0] if error.args else None
    return (
        code in (1054, 1146)
        or "no such table" in str(error)
        or "no such column" in str(error)
    )


class _Asked:
    """A wrapper of statements that notes that one was answered."""

    is_answered = False

    def __call__(self, execute: Callable[..., Any], *of: Any) -> Any:
        """See Django's database instrumentation."""
        result = execute(*of)
        self.is_answered = True
        return result


@contextmanager
def reachable() -> Iterator[None]:
    """Turns "the metadata database is away" into MetadataUnavailable and throws the
    connection away.

    A cursor that is closed on a connection that broke meanwhile raises the driver's own
    errors. A block that had nothing to ask has not heard from the database.
    """
    connection, asked = transaction.get_connection(), _Asked()
    driver = connection.Database
    try:
        with connection.execute_wrapper(asked):
            yield
        if asked.is_answered:
            contact.heard()
            _outage.ended()
    except (
        OperationalError,
        InterfaceError,
        driver.OperationalError,
        driver.InterfaceError,
    ) as error:
        if lacks_schema(error):
            raise  # not an outage: the database was not migrated
        if not transaction.get_connection().in_atomic_block:
            # a broken connection would fail for ever where no request ends
            close_old_connections()
        _outage.failed(error)  # its address is not for clients
        raise MetadataUnavailable.no_answer() from error


def read_in_pages(rows: QuerySet[M]) -> Iterator[list[M]]:
    """All rows by rising id, PAGE at a time, each page read when it is wanted.

    For sweeps: rows that cannot be dealt with now are passed, and hide none behind them.
    """
    after = 0
    while True:
        with reachable():
            page = list(rows.filter(pk__gt=after).order_by("pk")[:PAGE])
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1].pk
