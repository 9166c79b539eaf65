"""Web applications on asyncio send and consume, while their clients leave and they are killed.

Clients post orders until each has its answer. Some leave before it, and some requests have a
timeout of a few milliseconds; both are repeated as a new try. The processes of the application
are ended by SIGTERM and by kill -9 meanwhile, and started again.

What must hold, by the topic's messages and the journals of the handlers: each try is stored at
most once, and an answered try exactly once, where its answer said. Each stored message is
handled. It is handled a second time only if a process that had it was killed, or if a handler
before it in its queue was cancelled. None counts as failed.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.scenarios.stage import Stage
from tests.support import journal, venvs
from tests.support.environment import ROOT, free_port
from tests.support.logs import Place
from tests.support.terminal import Process
from tests.support.waiting import until

PROGRAMS = "tests.acceptance.programs.web"
REQUIREMENTS = ROOT / "tests/web/requirements.txt"
QUEUES = 4
CLIENTS = 12
LIMIT_S = 900.0
# Of 10 requests, so many have a client that leaves, or a timeout in the application.
LEAVE, TIME_OUT = 1, 1
MAX_PATIENCE_S = 0.02


@dataclass
class Part:
    """A process of the application, with those that ran in its place before."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    port: int | None = None
    has_journal: bool = True
    process: Process | None = None
    journals: list[Path] = field(default_factory=list)
    killed: set[Path] = field(default_factory=set)


class Clients:
    """Threads that post `count` orders to `paths` of the web processes at `ports`."""

    def __init__(
        self, ports: list[int], paths: tuple[str, ...], count: int, seed: int
    ) -> None:
        self._ports, self._paths, self._seed = ports, paths, seed
        self._numbers = iter(range(count))
        self._guard = threading.Lock()
        self.answers: dict[str, dict[str, int]] = {}
        self.tries: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self.is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True)
            for index in range(CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all orders are answered. Raises the error of a thread."""
        until(
            lambda: self.errors or not any(thread.is_alive() for thread in self._threads),
            limit_s=LIMIT_S,
        )
        if self.errors:
            raise self.errors[0]

    def _run(self, index: int) -> None:
        dice = random.Random(f"{self._seed}/{index}")
        try:
            while not self.is_over.is_set():
                with self._guard:
                    number = next(self._numbers, None)
                if number is None:
                    return
                self._post(number, dice)
        except Exception as error:  # noqa: BLE001
            self.errors.append(error)

    def _post(self, number: int, dice: random.Random) -> None:
        """Post an order in one try after another, until it is answered."""
        path = self._paths[number % len(self._paths)]
        for attempt in itertools.count():
            if self.is_over.is_set():
                return
            name = f"{number}-{attempt}"
            self.tries.add(name)
            way = dice.choices(
                ("wait", "leave", "time out"), (10 - LEAVE - TIME_OUT, LEAVE, TIME_OUT)
            )[0]
            patience_s = dice.uniform(0, MAX_PATIENCE_S)
            query = f"?timeout_s={patience_s:.4f}" if way == "time out" else ""
            port = dice.choice(self._ports)
            try:
                if way == "leave":
                    self._leave(port, f"{path}{name}", patience_s)
                    self.outcomes["left by the client"] += 1
                    continue
                status, body = self._ask(port, f"{path}{name}{query}")
            except OSError:
                # The process is down, or was killed with the request.
                self.outcomes["cut off"] += 1
                self.is_over.wait(0.05)
                continue
            self.outcomes[str(status)] += 1
            if status == 200:
                self.answers[name] = body
                return

    def _ask(self, port: int, path: str) -> tuple[int, dict[str, int]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", path)
            response = connection.getresponse()
            text = response.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        return response.status, json.loads(text) if response.status == 200 else {}

    def _leave(self, port: int, path: str, patience_s: float) -> None:
        """Send a request, and close the connection without reading the answer."""
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            time.sleep(patience_s)


class Play:
    """One play of an application: its processes, its clients, and the judgement."""

    def __init__(self, stage: Stage, *, count: int, restarts: int, kind: str) -> None:
        self.stage, self.count, self.restarts, self.kind = stage, count, restarts, kind
        self.python = venvs.python_with(REQUIREMENTS)
        self.topic, self.group = stage.fresh("web"), stage.fresh("web")
        self.ended: Counter[str] = Counter()
        self.parts = self._fastapi() if kind == "fastapi" else self._django()

    def run(self) -> str:
        terminal = self.stage.terminal
        terminal.run("topic", "create", self.topic, "--queues", str(QUEUES))
        terminal.run("group", "create", self.group)
        terminal.run("subscribe", self.group, self.topic)
        if self.kind == "django":
            migrate = ("-m", "django", "migrate", "--run-syncdb", "--verbosity", "0")
            terminal.start(*migrate, environ=self.parts[0].environ).wait()
        for part in self.parts:
            self._start(part)
        for part in self.parts:
            self._await_port(part)
        began = time.monotonic()
        paths = ("/orders/",) if self.kind == "fastapi" else ("/send/", "/orders/")
        ports = [part.port for part in self.parts if part.port is not None]
        clients = Clients(ports, paths, self.count, self.stage.rng.randrange(1 << 30))
        clients.start()
        try:
            self._restart_parts(clients)
            clients.join()
        finally:
            clients.is_over.set()
        sent_s = time.monotonic() - began
        until(self._is_all_committed, limit_s=LIMIT_S, every_s=0.2)
        handled_s = time.monotonic() - began
        for part in self.parts:
            self._end(part)
        verdict = self._judge(clients)
        verdict += f"; sent in {sent_s:.0f} s, handled in {handled_s:.0f} s"
        self.stage.say(verdict)
        return verdict

    def _fastapi(self) -> list[Part]:
        return [self._web(f"web-{index}", "fastapi_app:app") for index in range(2)]

    def _django(self) -> list[Part]:
        web = self._web("web", "asgi:application", "--lifespan", "off")
        web.has_journal = False
        environ = {
            "DJANGO_SETTINGS_MODULE": f"{PROGRAMS}.settings",
            "WEB_DATABASE": str(self.stage.directory / f"{self.topic}.sqlite3"),
        }
        relay = ("-m", "django", "relay_outbox", "--lease-s", "1.5", "--poll-ms", "20")
        parts = [
            web,
            Part("relay", relay, {}, has_journal=False),
            *(Part(f"worker-{n}", ("-m", f"{PROGRAMS}.worker"), {}) for n in range(2)),
        ]
        for part in parts:
            part.environ.update(environ)
        return parts

    def _web(self, name: str, application: str, *options: str) -> Part:
        port = free_port()
        argv = ("-m", "uvicorn", f"{PROGRAMS}.{application}", "--port", str(port))
        return Part(name, (*argv, "--no-access-log", *options), {}, port)

    def _start(self, part: Part) -> None:
        path = self.stage.directory / f"{self.topic}-{part.name}-{len(part.journals)}.jsonl"
        part.journals.append(path)
        environ = {
            "WEB_TOPIC": self.topic,
            "WEB_GROUP": self.group,
            "WEB_INSTANCE": part.name,
            "WEB_JOURNAL": str(path),
            "WEB_END": self.stage.rng.choice(("stop", "cancel")),
            **part.environ,
        }
        part.process = self.stage.terminal.start(
            *part.argv, name=path.stem, environ=environ, python=self.python
        )

    def _await_port(self, part: Part) -> None:
        """Wait until the process of a part serves requests, or for its first line."""
        process = part.process
        assert process is not None
        path = part.journals[-1]

        def is_ready() -> bool:
            assert process.runs, process.err.read_text()
            if part.port is None:
                return not part.has_journal or path.exists()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", part.port)) == 0

        until(is_ready, limit_s=120)

    def _restart_parts(self, clients: Clients) -> None:
        """End one process after another, evenly spread over the answers."""
        for turn in range(1, self.restarts + 1):
            mark = self.count * turn // (self.restarts + 1)
            until(
                lambda mark=mark: clients.errors or len(clients.answers) >= mark,  # type: ignore[misc]
                limit_s=LIMIT_S,
            )
            # Each part in turn: first killed, in the next round terminated.
            part = self.parts[(turn - 1) % len(self.parts)]
            is_kill = ((turn - 1) // len(self.parts) + turn) % 2 == 1
            if is_kill:
                assert part.process is not None
                part.process.kill()
                part.killed.add(part.journals[-1])
                self.ended["kill -9"] += 1
            else:
                self._end(part)
                self.ended["SIGTERM"] += 1
            self._start(part)
            self._await_port(part)

    def _end(self, part: Part) -> None:
        assert part.process is not None
        part.process.popen.send_signal(signal.SIGTERM)
        # uvicorn sends itself the signal again when it has shut down.
        part.process.wait(0, -signal.SIGTERM)

    def _is_all_committed(self) -> bool:
        """Return True if no outbox row waits to be sent, and the group has no lag."""
        return self._unsent() == 0 and all(
            queue["committed"] == queue["head"]
            for queue in self.stage.terminal.admin.lag(self.group)["queues"]
        )

    def _unsent(self) -> int:
        """Return the number of rows in the outbox."""
        if self.kind == "fastapi":
            return 0
        database = self.parts[0].environ["WEB_DATABASE"]
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            query = "SELECT COUNT(*) FROM catmq_outbox_outboxmessage"
            return int(connection.execute(query).fetchone()[0])

    def _stored(self) -> dict[str, list[Place]]:
        """Return the places of each try in the topic."""
        places: dict[str, list[Place]] = defaultdict(list)
        for queue in self.stage.terminal.admin.topic(self.topic)["queues"]:
            offset, head = 0, queue["head"] or 0
            while offset < head:
                page = self.stage.terminal.admin.messages(
                    self.topic, queue=queue["queue"], offset=offset, limit=1000
                )
                offset += len(page)
                for message in page:
                    name = message["body_bytes"].decode()
                    places[name].append(Place(queue["queue"], message["offset"]))
        return places

    def _judge(self, clients: Clients) -> str:
        places = self._stored()
        stored_twice = {name: where for name, where in places.items() if len(where) > 1}
        assert not stored_twice, f"stored twice: {dict([*stored_twice.items()][:5])}"
        assert not places.keys() - clients.tries, "the topic has messages that nobody sent"
        answered = {name.partition("-")[0] for name in clients.answers}
        assert len(answered) == self.count, f"{len(answered)} of {self.count} are answered"
        lost = [name for name in clients.answers if name not in places]
        assert not lost, f"{len(lost)} answered, and not stored: {lost[:5]}"
        elsewhere = [
            (name, receipt, places[name])
            for name, receipt in clients.answers.items()
            if receipt and (receipt["queue"], receipt["offset"]) != places[name][0]
        ]
        assert not elsewhere, f"stored elsewhere than answered: {elsewhere[:5]}"
        handling = self._judge_handlers({where[0] for where in places.values()})
        if self.kind == "django":
            self._judge_rows(places.keys(), clients)
        return (
            f"OK: {self.kind}, {self.count} orders in {len(clients.tries)} tries "
            f"({', '.join(f'{n} {what}' for what, n in sorted(clients.outcomes.items()))}); "
            f"{len(places)} messages stored, none twice; {dict(self.ended)}; {handling}"
        )

    def _judge_handlers(self, places: set[Place]) -> str:
        """Compare the journals with the messages' places. Return counts for the verdict."""
        begun: dict[Path, set[Place]] = defaultdict(set)
        ended: dict[Path, set[Place]] = defaultdict(set)
        begun_by: dict[Place, list[Path]] = defaultdict(list)
        killed = set[Path]().union(*(part.killed for part in self.parts))
        broken = 0
        lines = sorted(
            (line | {"path": path}
            for part in self.parts if part.has_journal
            for path in part.journals
            for line in self._lines_of(part, path)),
            key=lambda line: line["at"],
        )  # fmt: skip
        for line in lines:
            if line["what"] not in ("begin", "end", "broken"):
                continue
            place, path = Place(line["queue"], line["offset"]), line["path"]
            assert line["attempt"] == 0, f"{place} has counted as failed"
            if line["what"] == "begin":
                begun[path].add(place)
                begun_by[place].append(path)
            elif line["what"] == "end":
                ended[path].add(place)
            else:
                assert "CancelledError" in line["error"], line
                broken += 1
        # If a handler is cancelled, the queue's committed offset stays at its message, and
        # finished messages after that are delivered again.
        behind_broken = 0
        for place, paths in begun_by.items():
            for path in paths[:-1]:
                if path in killed or place not in ended[path]:
                    continue
                first = min(p.offset for p in begun[path] if p.queue == place.queue)
                behind_broken += 1
                assert any(
                    Place(place.queue, offset) not in ended[path]
                    for offset in range(first, place.offset)
                ), f"{place} was finished by {path.stem}, and handled again"
        unhandled = places - set().union(*ended.values())
        assert not unhandled, f"{len(unhandled)} not handled: {sorted(unhandled)[:5]}"
        after_kill = sum(
            any(path in killed for path in paths[:-1]) for paths in begun_by.values()
        )
        return (
            f"each handled; {after_kill} began again after a kill, {broken} handlers were "
            f"cancelled, and {behind_broken} finished messages behind them came again"
        )

    def _lines_of(self, part: Part, path: Path) -> list[dict[str, Any]]:
        if not path.exists():
            assert path in part.killed
            return []
        read = journal.read(path, killed=path in part.killed)
        assert not read.wrong, (path, read.wrong[:3])
        return read.lines

    def _judge_rows(self, stored: Iterable[str], clients: Clients) -> None:
        """Check the project's tables: each message is handled once, and each order has its
        message.
        """
        database = self.parts[0].environ["WEB_DATABASE"]
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            handled = Counter(
                name for (name,) in connection.execute("SELECT name FROM web_handled")
            )
            orders = {name for (name,) in connection.execute("SELECT name FROM web_order")}
        wrong = {name: handled[name] for name in stored if handled[name] != 1}
        assert not wrong and handled.keys() == set(stored), f"not once: {wrong}"
        by_outbox = {name for name in stored if int(name.partition("-")[0]) % 2}
        assert orders == by_outbox, f"orders without a message: {orders ^ by_outbox}"


def run(stage: Stage, *, kind: str, count: int, restarts: int) -> str:
    """Play it with the application `kind`, fastapi or django. Return the verdict."""
    return Play(stage, count=count, restarts=restarts, kind=kind).run()
