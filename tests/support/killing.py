"""A process that is killed by SIGKILL before its first statement, its second, and so on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from messagestore.engine.mysql_session import MySqlSession
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import node_pools

MOST_STEPS = 60


def killed_step_by_step(act: Callable[[], object]) -> int:
    """Run `act` in a child that is killed before its n-th statement on a node, n = 1, 2, …

    Return how often it died before it ended. A child has its own connections to nodes and
    none to metadata.
    """
    for step in range(1, MOST_STEPS):
        child = os.fork()
        if child == 0:
            _be_killed(step, act)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
            return step - 1
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never came through")


def _be_killed(step: int, act: Callable[[], object]) -> None:
    node_pools._nodes.clear()  # a child must not use the parent's connections
    statements_left = step

    def count(text: str | bytes) -> None:
        nonlocal statements_left
        start = text if isinstance(text, str) else text[:11].decode()
        # statements that only set up a session
        if start.startswith(("SET SESSION", "PRAGMA")):
            return
        statements_left -= 1
        if statements_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        _count_mysql(count)
        _count_sqlite(count)
        act()
        os._exit(0)
    finally:
        os._exit(1)


def _count_mysql(count: Callable[[str | bytes], None]) -> None:
    send = MySqlSession.send

    def counted(session: MySqlSession, text: bytes, **more: bool) -> Any:
        count(text)
        return send(session, text, **more)

    MySqlSession.send = counted  # type: ignore[method-assign,assignment]


def _count_sqlite(count: Callable[[str | bytes], None]) -> None:
    begin = SqliteSession.__init__

    def traced(session: SqliteSession, **arguments: Any) -> None:
        begin(session, **arguments)
        session._db.set_trace_callback(count)

    SqliteSession.__init__ = traced  # type: ignore[method-assign]
