"""A TCP link between two parts of the system that a test can cut, hold or slow down, and
whose answers it can drop.

    with Link(port, mysql=True).running() as link:      # clients connect to link.port
        link.hold(); link.restore()                     # lasts until restore()
        link.cut(), link.half_close()                   # happens at once, to all connections
        lost = link.lose_answers(match=b"INSERT")       # waits for a request; sets lost.hit

Faults are not random here: schedules choose them by a seed. A single thread with an event
loop serves all connections of a link.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.mysql_answers import MySqlAnswers

T = TypeVar("T")
PIECE = 1 << 16
QUIET_S = 0.05  # an answer of another protocol has ended after such a pause
LONGEST_MATCH = 256
LOSE, CUT_AFTER, CUT_BETWEEN = (
    "lose answers",
    "cut inside an answer",
    "cut between two results",
)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST
_GONE = (OSError, asyncio.IncompleteReadError)


@dataclass
class Fault:
    """Strikes at `count` requests that contain `match`. `hit` is set after the last strike.

    `after`: how much of the answer is passed on, in bytes or in results of a MySQL answer;
    then `more` bytes.
    """

    kind: str
    match: bytes = b""
    count: int = 1
    after: int = 0
    more: int = 0
    hits: int = 0
    hit: threading.Event = field(default_factory=threading.Event)
    left: int = 0

    def __post_init__(self) -> None:
        self.left = self.count

    def strike(self) -> None:
        """Record a strike."""
        self.hits += 1
        if self.hits >= self.count:
            self.hit.set()


class Link:
    """Listens on 127.0.0.1 and passes everything on to `target`. `mysql`: the traffic is
    MySQL's protocol.
    """

    def __init__(self, target: int, *, mysql: bool = False, name: str = "link") -> None:
        self.target, self.mysql, self.name = target, mysql, name
        self.port = 0
        self.delay_s = 0.0
        self.refuses = False
        # Faults and connections are used only in the thread of the loop, so they need no
        # lock.
        self.armed: list[Fault] = []
        self.connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        """The URL of the broker that the link leads to."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Link]:
        """Serve during the block."""
        self.open = asyncio.Event()
        self.open.set()
        thread = threading.Thread(
            target=self._loop.run_forever, name=self.name, daemon=True
        )
        thread.start()
        server = self._run(self._serve())
        try:
            yield self
        finally:
            self._run(self._end(server))
            # Stopped only after _end() has run: a stopped loop would leave its sockets
            # open.
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    def hold(self) -> None:
        """Accept connections, but pass nothing on in either direction."""
        self._call(self.open.clear)

    def refuse(self) -> None:
        """Cut all connections and answer new connections with RST."""
        self.refuses = True
        self.cut()

    def slow_down(self, seconds: float) -> None:
        """Delay everything, piece by piece."""
        self.delay_s = seconds

    def restore(self) -> None:
        """Pass everything on again, and drop faults that have not struck."""

        def restored() -> None:
            self.armed.clear()
            self.delay_s, self.refuses = 0.0, False
            self.open.set()

        self._call(restored)

    def cut(self) -> int:
        """End all connections with RST. Return their number."""
        return self._call(
            lambda: sum(connection.reset() for connection in list(self.connections))
        )

    def half_close(self) -> int:
        """End the direction of answers, as a server does at shutdown. Requests still
        pass.
        """
        return self._call(
            lambda: sum(connection.end_answers() for connection in list(self.connections))
        )

    def lose_answers(self, count: int = 1, match: bytes = b"") -> Fault:
        """Let the next requests pass, but drop their answers and break the connection."""
        return self._arm(Fault(LOSE, match, count))

    def cut_answer(self, after: int, count: int = 1, match: bytes = b"") -> Fault:
        """End the next answers after this number of bytes."""
        return self._arm(Fault(CUT_AFTER, match, count, after))

    def cut_between_results(
        self, after: int = 1, *, more: int = 0, count: int = 1, match: bytes = b""
    ) -> Fault:
        """End the next answers with more than `after` results after that result, or `more`
        bytes later.

        The driver takes an end inside the columns of a later result as the end of the whole
        answer.
        """
        assert self.mysql, "only MySQL answers with several results"
        return self._arm(Fault(CUT_BETWEEN, match, count, after, more))

    def take(self, request: bytes) -> Fault | None:
        """Return the fault that a request meets. Called in the thread of the link."""
        for fault in self.armed:
            if fault.left and fault.match in request:
                fault.left -= 1
                return fault
        return None

    def _arm(self, fault: Fault) -> Fault:
        self._call(lambda: self.armed.append(fault))
        return fault

    def _call(self, act: Callable[[], T]) -> T:
        async def acted() -> T:
            return act()

        return self._run(acted())

    def _run(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        # The caller waits, so the change holds when the test continues.
        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)

    async def _serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = _End(reader, writer)
        server = await self._connect_target()
        if server is None:
            client.reset()
            return
        connection = _Connection(self, client, server)
        self.connections.add(connection)
        try:
            await connection.run()
        except asyncio.CancelledError:
            return  # at the end of the link; asyncio would log it as an error
        finally:
            self.connections.discard(connection)

    async def _connect_target(self) -> _End | None:
        """Connect to the target. Return None if the connection is refused."""
        if not self.refuses:
            # A held link accepts connections but does not reach the target, as a lost
            # network does.
            await self.open.wait()
        try:
            return (
                None
                if self.refuses
                else _End(*await asyncio.open_connection("127.0.0.1", self.target))
            )
        except OSError:
            return None


class _End:
    """A socket of a connection, to the client or to the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.ended = False

    async def write(self, data: bytes) -> None:
        if not self.ended:
            self.writer.write(data)
            await self.writer.drain()

    def end(self) -> None:
        """Send FIN."""
        if not self.ended:
            self.ended = True
            with suppress(*_GONE, RuntimeError):
                self.writer.write_eof()

    def reset(self) -> None:
        """Send RST and drop unsent data."""
        self.ended = True
        with suppress(*_GONE):
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET
            )
        self.writer.transport.abort()


class _Connection:
    """Passes requests and answers on until both sides have ended, or a fault ends it."""

    def __init__(self, link: Link, client: _End, server: _End) -> None:
        self.link, self.client, self.server = link, client, server
        self.fault: Fault | None = None
        self.tail = b""
        self.answered = 0  # bytes, or results, of the answer that meets the fault
        self.parser = MySqlAnswers() if link.mysql else None

    async def run(self) -> None:
        """Pass everything on until the end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests())
                group.create_task(self._answers())
        except* _GONE:
            pass
        finally:
            # The connection ended before the fault could strike; another request meets it.
            if self.fault is not None:
                self.fault.left += 1
            self.client.writer.close()
            self.server.writer.close()

    def reset(self) -> int:
        """Send RST to both sides."""
        self.client.reset()
        self.server.reset()
        return 1

    def end_answers(self) -> int:
        """Send FIN to the client."""
        self.client.end()
        return 1

    async def _requests(self) -> None:
        while data := await self.client.reader.read(PIECE):
            await self._pass()
            recent = self.tail + data
            # A match may be split over two pieces, so the end of the last piece is searched
            # again.
            self.tail = recent[-LONGEST_MATCH:]
            # Taken before the request is passed on: the answer may arrive at once.
            if self.fault is None and (fault := self.link.take(recent)):
                self.fault, self.answered, self.tail = fault, 0, b""
            await self.server.write(data)
        # The client has ended its requests; answers that are under way still pass.
        self.server.end()

    async def _answers(self) -> None:
        while data := await self.server.reader.read(PIECE):
            await self._pass()
            ends = list(self.parser.feed(data)) if self.parser else []
            answer_ended = bool(ends) and not ends[-1].more
            if self.fault is None:
                await self.client.write(data)
            elif self.fault.kind == LOSE:
                await self._lose(answer_ended)
            elif self.fault.kind == CUT_AFTER:
                await self._cut(
                    data, self.fault.after - self.answered, len(data), answer_ended
                )
            else:
                inner = [end.at for end in ends if end.more]
                index = self.fault.after - self.answered - 1
                at = len(data) + 1
                if index < len(inner):
                    at = min(inner[index] + self.fault.more, len(data))
                await self._cut(data, at, len(inner), answer_ended)
        self.client.end()

    async def _pass(self) -> None:
        if self.link.delay_s:
            await asyncio.sleep(self.link.delay_s)
        await self.link.open.wait()

    async def _lose(self, over: bool) -> None:
        """Drop an answer. When it is complete, break both connections."""
        assert self.fault is not None
        if not over and self.parser is not None:
            return
        with suppress(TimeoutError):
            while self.parser is None and await self._piece():
                pass
        self._strike(self.fault)
        self.reset()

    async def _piece(self) -> bytes:
        async with asyncio.timeout(QUIET_S):
            return await self.server.reader.read(PIECE)

    async def _cut(self, data: bytes, at: int, count: int, over: bool) -> None:
        """Pass an answer on up to `at`. If it ends earlier, the fault waits for the next
        answer.
        """
        fault = self.fault
        assert fault is not None
        if at <= len(data):
            await self.client.write(data[:at])
            self._strike(fault)
            self.client.end()
            self.server.reset()
            raise ConnectionAbortedError
        await self.client.write(data)
        self.answered += count
        if over:
            self.fault, fault.left = None, fault.left + 1

    def _strike(self, fault: Fault) -> None:
        fault.strike()
        self.fault = None
