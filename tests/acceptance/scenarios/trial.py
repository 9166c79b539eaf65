"""A trial: senders and a group at work on two nodes behind links, a schedule of faults,
calm, and judgement.

Senders are our client and bare HTTP, consumers are processes with `run()`. Whatever was
done to them, in the end everything that was acknowledged is stored once, at the place its
receipt names, and handled; no queue had two owners; nothing that only rises has fallen;
`verify` finds nothing; and brokers have logged no 500 and no traceback that the faults do
not explain.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.acceptance.scenarios.crowd import Crowd, Member
from tests.acceptance.scenarios.schedule import Strike
from tests.acceptance.scenarios.stage import Stage
from tests.support import broker_logs, fixed, journal, stored, verdicts
from tests.support.journal import Journal
from tests.support.links import Link
from tests.support.logs import Tail
from tests.support.mariadb import MariaDB
from tests.support.pair import Brokers, Pair
from tests.support.verdicts import Evidence
from tests.support.waiting import until

QUEUES = 2  # on each node
EVERY_MS, RAW_EVERY_MS = 40, 60
SESSION_MS = 15_000
MEMBERS = 3
LOOK_EVERY_S = 0.2  # at reader and head rows
CALM_S = 60.0  # after the last fault, until everything has gone on
STALL_S = 90.0
Act = Callable[[Strike], AbstractContextManager[None]]


class Database(Protocol):
    """A server, or a cluster of servers, that holds nodes."""

    def connect(self, **options: Any) -> Any:
        """Return a raw connection with autocommit."""

    def execute(self, statement: str) -> list[Any]:
        """Run a statement on a connection of its own and return its rows."""


@dataclass
class Trial:
    """One trial. `links` lead to the nodes, `doors` to the brokers; `schemas` are those of
    the nodes.
    """

    stage: Stage
    pair: Brokers
    crowd: Crowd
    database: Database
    nodes: tuple[str, ...]
    schemas: tuple[str, ...]
    links: tuple[Link, ...]
    doors: tuple[Link, ...]
    expected: Sequence[str] = broker_logs.UNAVAILABLE_ERRORS
    members: list[Member] = field(default_factory=list)

    def begin(self, *, senders: int = 1, raw: int = 1, pad: int = 0) -> None:
        """Members share the queues, senders send, and somebody watches positions."""
        self.logs = broker_logs.LogMarks(self.pair.servers)
        self.members = [self.crowd.join() for _ in range(MEMBERS)]
        self.crowd.await_shared(self.members)
        for _ in range(senders):
            self.crowd.send(EVERY_MS * len(self.crowd.ids) * senders)
        for _ in range(raw):
            urls = ",".join(door.url for door in self.doors or self.pair.servers)
            self.crowd.send_raw(RAW_EVERY_MS * raw, urls=urls, pad=pad)
        self.watcher = Watcher(self)
        self.more(5 * len(self.crowd.ids))

    def more(self, count: int, *, limit_s: float = CALM_S) -> None:
        """Waits until so many more messages have been handled."""
        goal = self.crowd.handled() + count
        until(lambda: self.crowd.handled() >= goal, limit_s=limit_s, every_s=0.05)

    def expand(self, queues: int) -> int:
        """Gives the topic so many more queues on each node; how many it got."""
        before = len(self.crowd.ids)
        for node in self.nodes:
            self.stage.terminal.admin.expand_topic(
                self.crowd.topic, queues=queues, node=node
            )
        self.crowd.ids = self.crowd.queues_now()
        return len(self.crowd.ids) - before

    def play(self, strikes: Sequence[Strike], acts: Mapping[str, Act]) -> None:
        """Does what a schedule says."""
        begun = time.monotonic()
        for strike in strikes:
            wait_until(begun + strike.at_s)
            self.stage.note(str(strike))
            with acts[strike.what](strike):
                wait_until(begun + strike.end_s)

    def finish(self) -> None:
        """Calm, the end of everybody, and the judgement. Raises AssertionError with what is
        wrong.
        """
        for link in (*self.links, *self.doors):
            link.restore()
        self.more(5 * len(self.crowd.ids))
        told = self.crowd.finish(stall_s=STALL_S)
        self.watcher.stop()
        evidence = self.evidence()
        verdicts.assert_no_findings(
            [*verdicts.find_faults(evidence), *self.logs.found(self.expected)]
        )
        said = self.pair.first.manage("verify", self.crowd.topic, "--digests").splitlines()[
            -1
        ]
        repeated = len(told.handlings) - len({one.place for one in told.handlings})
        self.stage.say(
            f"OK: {len(told.sent)} acknowledged messages are stored once and handled, "
            f"{repeated} handled "
            f"again, {len(evidence.lines_of('again'))} receipts repeated, "
            f"{len(self.watcher.tail.follow())} looks at positions; {said}"
        )

    def evidence(self) -> Evidence:
        """Everything that processes and tables tell."""
        members = {
            name: journal.read(one.journal.path, killed=name in self.crowd.deaths)
            for name, one in self.crowd.members.items()
        }
        senders = {
            one.journal.path.stem: journal.read(one.journal.path)
            for one in self.crowd.senders
        }
        with ExitStack() as stack:
            nodes = []
            for schema in self.schemas:
                ask = asking(
                    stack.enter_context(closing(self.database.connect(database=schema)))
                )
                mine = [one for (one,) in ask("SELECT queue_id FROM queue_head")]
                nodes.append((ask, [one for one in mine if one in self.crowd.ids]))
            tables = stored.read(nodes)
        watchers = {"watcher": journal.read(self.watcher.tail.path)}
        return Evidence(members, senders, watchers, tables, self.crowd.deaths)


class Watcher:
    """Looks at reader and head rows all the time, past every broker and link."""

    def __init__(self, trial: Trial) -> None:
        path = trial.stage.directory / f"{trial.crowd.group}-watcher.jsonl"
        self.tail = Tail(path)
        self._journal = Journal(path)
        self._trial = trial
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()
        self._thread.join(30)
        self._journal.tell("left")

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(OSError, self._errors()):
                self._look()

    def _errors(self) -> type[Exception]:
        import MySQLdb

        return MySQLdb.Error  # type: ignore[no-any-return]

    def _look(self) -> None:
        """Looks until stopped, or until the database is away."""
        options = {"read_timeout": 10, "connect_timeout": 2}
        with closing(self._trial.database.connect(**options)) as connection:
            ask = asking(connection)
            while not self._stopped.wait(LOOK_EVERY_S):
                for schema in self._trial.schemas:
                    self._note(ask, schema)

    def _note(self, ask: stored.Ask, schema: str) -> None:
        # First the positions, then the heads that must be above them.
        positions = ask(f"SELECT queue_id, epoch, committed FROM {schema}.reader")
        heads: dict[int, int] = dict(ask(f"SELECT queue_id, head FROM {schema}.queue_head"))
        for queue, epoch, committed in positions:
            if queue in heads:
                about = {"epoch": epoch, "committed": committed, "head": heads[queue]}
                self._journal.tell("position", queue=queue, **about)


def asking(connection: Any) -> stored.Ask:
    """Return what runs a SELECT on a connection."""

    def ask(statement: str) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())

    return ask


def wait_until(at: float) -> None:
    """Returns at that time."""
    until(
        lambda: time.monotonic() >= at,
        limit_s=max(0.0, at - time.monotonic()) + 60,
        every_s=0.01,
    )


@contextmanager
def prepared(
    stage: Stage,
    pair: Pair,
    name: str,
    *,
    database: MariaDB | None = None,
    session_ms: int = SESSION_MS,
    through_doors: bool = False,
) -> Iterator[Trial]:
    """Two nodes of the trial's own on a database (the pair's), each behind a link, and a
    topic on both.

    `through_doors`: consumers and our client, too, reach brokers only through links.
    """
    base = database or pair.nodes
    with ExitStack() as stack:
        doors = tuple(
            stack.enter_context(Link(one.port, name="door").running())
            for one in pair.servers
        )
        links = tuple(
            stack.enter_context(Link(base.port, mysql=True).running()) for _ in range(2)
        )
        schemas = tuple(stack.enter_context(kept_schema(base)) for _ in links)
        nodes = tuple(stage.fresh(f"{name}-{number}") for number in (1, 2))
        for node, link, schema in zip(nodes, links, schemas, strict=True):
            where = {"port": link.port, "database": schema, "password": base.password}
            register(pair, {"name": node, **where})
        if through_doors:
            stage.terminal.environ |= {
                "CATMQ_URL": ",".join(one.url for one in doors),
                fixed.ONLY: "1",
            }
        crowd = Crowd(
            stage, QUEUES, session_ms, name=name, node=nodes[0], more_nodes=(nodes[1],)
        )
        yield Trial(stage, pair, crowd, base, nodes, schemas, links, doors)


@contextmanager
def kept_schema(database: Database) -> Iterator[str]:
    """A new schema, dropped at the end unless something was wrong: then it is evidence."""
    name = f"trial_{secrets.token_hex(6)}"
    database.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    database.execute(f"DROP DATABASE {name}")


def register(pair: Brokers, node: dict[str, Any]) -> None:
    """Registers a node for topics that name it."""
    always: dict[str, Any] = {
        "engine": "mysql",
        "host": "127.0.0.1",
        "username": "catmq",
        "dedicated": True,
    }
    status, answer = pair.first.call("POST", "/api/v1/nodes", {**always, **node})
    assert status == 201, answer
