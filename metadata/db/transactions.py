"""Metadata transactions, which are repeated if the database rolled them back.

Every transaction that changes a group locks the group's row before anything else (several
groups by rising id), and decides on rows that it read after that. `changes.record_change`
comes last, because it locks the row that all changes share. With that order deadlocks are
rare. The server rolls back the whole transaction that it chooses in a deadlock, so it can be
run again.
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
PAGE = 100  # rows that a sweep reads per query
log = logging.getLogger(__name__)

_outage = Outage(log, "the metadata database")

TRIES = 3
# deadlock, lock wait timeout, record has changed since last read (MariaDB)
REPEATABLE_ERRORS = {1213, 1205, 1020}


class _ThreadState(threading.local):
    # Most threads never query the metadata, and a check of each database alias costs as
    # much as a small request. Only our MySQL backend reports that it connects, so with
    # SQLite every thread may have connected.
    has_connected = config.database is None
    server = ""


_thread_state = _ThreadState()


def note_connection(server: str) -> None:
    """Note that this thread has connected to the database. Called by the MySQL backend.

    `server` is the address of the server, if the settings name several.
    """
    _thread_state.has_connected = True
    _thread_state.server = server


def written_on() -> str:
    """Return the address of the server that this thread's metadata is written to, "" if the
    settings name only one.
    """
    return _thread_state.server


def release_connections() -> None:
    """Close connections of this thread that are broken or too old. Called at the end of a
    request.
    """
    if _thread_state.has_connected:
        close_old_connections()


def transactional(work: Callable[P, T]) -> Callable[P, T]:
    """Decorator: run `work` in a transaction on the metadata database, up to TRIES times if
    it is rolled back because of a deadlock or a lock wait timeout.

    Inside another transaction `work` becomes part of that, without repeats of its own. Raises
    MetadataUnavailable if the database cannot be reached, and also if the last try ends in a
    deadlock or a lock wait timeout.
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if transaction.get_connection().in_atomic_block:
            return work(*args, **kwargs)
        with reachable():
            for attempt in range(1, TRIES + 1):
                try:
                    with transaction.atomic():
                        return work(*args, **kwargs)
                except OperationalError as error:
                    if attempt == TRIES or not may_be_repeated(error):
                        raise
                    log.info(
                        "metadata transaction rolled back, try %d follows: %s",
                        attempt + 1,
                        error,
                    )
                    # Random, so that two transactions do not meet in a deadlock again.
                    time.sleep(random.uniform(0.005, 0.05) * attempt)
        raise AssertionError("not reached")

    return run


def may_be_repeated(error: OperationalError) -> bool:
    """Return True if the error ended a transaction that can be run again from its begin."""
    code = error.args[0] if error.args else None
    # After 1205 (lock wait timeout) MySQL by default rolls back only the statement. The rest
    # is rolled back by transaction.atomic(), which the error leaves before it comes here.
    return code in REPEATABLE_ERRORS


def lacks_schema(error: Exception) -> bool:
    """Return True if a table or column is missing: the database was not migrated."""
    code = error.args[0] if error.args else None
    return (
        code in (1054, 1146)  # unknown column, no such table
        or "no such table" in str(error)
        or "no such column" in str(error)
    )


class _AnswerMonitor:
    """Notes whether the database answered a statement.

    Used with connection.execute_wrapper() of Django, which calls it instead of each statement.
    """

    has_answer = False

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        result = execute(*arguments)
        self.has_answer = True
        return result


@contextmanager
def reachable() -> Iterator[None]:
    """Turn OperationalError and InterfaceError of a block into MetadataUnavailable, and close
    a broken connection.

    A block that gets an answer counts as contact with the database. Raises the original error
    if the database was not migrated.
    """
    connection, monitor = transaction.get_connection(), _AnswerMonitor()
    driver = connection.Database
    try:
        with connection.execute_wrapper(monitor):
            yield
        if monitor.has_answer:
            contact.heard()
            _outage.ended()
    except (
        OperationalError,
        InterfaceError,
        # Not wrapped by Django: raised when a cursor is closed on a broken connection.
        driver.OperationalError,
        driver.InterfaceError,
    ) as error:
        if lacks_schema(error):
            raise  # not an outage: the database was not migrated
        if not transaction.get_connection().in_atomic_block:
            # In loops no request ends, so a broken connection would never be closed.
            close_old_connections()
        # Only in the log: the error names the database's address, which is not for clients.
        _outage.failed(error)
        raise MetadataUnavailable.no_answer() from error


def read_in_pages(rows: QuerySet[M]) -> Iterator[list[M]]:
    """Yield all rows by rising id in lists of at most PAGE, each read when it is needed.

    For sweeps: a row that cannot be handled now is still followed by the rows after it, because
    the next page begins after the last id.
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
