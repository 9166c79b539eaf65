"""Many groups against one broker: the short form of `script/bench groups`, with its code
and its checks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from benchmarks.gauges import Machine
from benchmarks.groups import Run, make_groups, make_topics
from benchmarks.members import Work
from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport
from tests.support.mariadb import MariaDB
from tests.support.server import Server

SECONDS = 4.5
GROUPS, MEMBERS, QUEUES = 6, 3, 8


@pytest.fixture
def machine(mariadb_server: Server, mariadb: MariaDB) -> Iterator[Machine]:
    """The session's server on MariaDB, watched."""
    with closing(mariadb.connect()) as connection:
        yield Machine(mariadb_server.broker_pid, mariadb.pid, connection)


def test_every_heartbeat_is_answered_and_every_queue_owned_once(
    mariadb_server: Server, machine: Machine
) -> None:
    """Half of the groups exist; members make the others."""
    name = f"many-{secrets.token_hex(4)}"
    admin = Admin(HttpTransport(mariadb_server.url, api_key=mariadb_server.api_key))
    work = Work(
        url=mariadb_server.url,
        api_key=mariadb_server.api_key,
        topics=make_topics(admin, name, count=2, queues=QUEUES),
        queues=QUEUES,
        groups=GROUPS,
        members=MEMBERS,
        prefix=name,
    )
    make_groups(admin, replace(work, groups=GROUPS // 2))
    run = Run(work, machine)
    asyncio.run(run.play(seconds=SECONDS, join_limit_s=60))
    assert run.book.broken == []
    steady = run.rows["steady"]
    # Of one every three seconds: the machine does other things, too, and the first ones
    # come late.
    assert steady["heartbeats answered a second"] > GROUPS * MEMBERS / 3 * 0.6
    # they wait instead of asking again
    assert steady["polls under way, mean"] > GROUPS * MEMBERS * 0.9
