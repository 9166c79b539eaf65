"""Simulated members of groups: what `catmq_client.Consumer` sends, for a thousand consumers
in one process.

A member registers, sends heartbeats, acquires what it is told to own, gives up what is
revoked, and keeps one long poll waiting, over kept-alive connections; failures are repeated
with the client's own back-off. A queue counts as held from the answer of its acquire until
just before the heartbeat that leaves it out, so a second holder is seen however short the
overlap.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from catmq_client.errors import AnswerLost, CatmqError, Gone, from_problem
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import api_path

MSGPACK = "application/msgpack"
REQUEST_S = 10.0  # the client's limit of one request
PAUSE_S = 1.0  # the client's longest pause before it acquires again
UNSETTLED_MS = 50  # how long its polls wait while queues may come within moments


@dataclass(frozen=True, slots=True)
class Work:
    """How many groups and members there are, which topic each group reads, and how they
    behave.
    """

    url: str
    api_key: str
    topics: tuple[str, ...]  # groups read them in turn
    queues: int  # of each topic
    groups: int
    members: int  # of each group
    wait_ms: int = 30_000  # of a poll
    ramp_s: float = 0.0  # the members start spread over so long
    prefix: str = "g"

    def group_names(self) -> list[str]:
        """All groups."""
        return [f"{self.prefix}-{number}" for number in range(self.groups)]


@dataclass
class Tally:
    """What happened in one phase: outcomes by (kind, outcome), seconds by kind of those
    that succeeded.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    # polls that were answered empty, long before their time and without news
    turned_away: int = 0

    def add(self, kind: str, outcome: str, seconds: float = 0.0) -> None:
        """Counts one request; `outcome` is ok, lost, or the code of a refusal."""
        self.outcomes[kind, outcome] += 1
        if outcome == "ok":
            self.seconds.setdefault(kind, []).append(seconds)

    def count(self, kind: str, outcome: str = "ok") -> int:
        """How many requests of a kind ended so."""
        return self.outcomes[kind, outcome]

    def refused(self, kind: str) -> int:
        """How many requests of a kind were answered with an error."""
        fine = ("ok", "lost")
        return sum(
            n
            for (of, outcome), n in self.outcomes.items()
            if of == kind and outcome not in fine
        )


class Book:
    """What all members share: the phase's tally, requests under way, holders of queues,
    broken promises.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.tally = Tally()
        self.under_way: Counter[str] = Counter()
        self.holders: dict[tuple[str, int], Member] = {}
        self.broken: list[str] = []

    def take(self, queue: int, member: Member) -> None:
        """Notes a holder; two with a lease at once break a promise."""
        other = self.holders.get((member.group, queue), member)
        if other is not member and other.has_lease():
            self.broken.append(
                f"{member.group} queue {queue}: {member.name} acquired what {other.name} holds"
            )
        self.holders[member.group, queue] = member

    def drop(self, queue: int, member: Member) -> None:
        """Notes that the member holds the queue no longer."""
        if self.holders.get((member.group, queue)) is member:
            del self.holders[member.group, queue]

    def unsettled(self) -> list[str]:
        """The groups whose queues are not all held, or not evenly by all members; empty
        when settled.
        """
        work, shares = self.work, Counter(member.name for member in self.holders.values())
        least, rest = divmod(work.queues, work.members)
        even = sorted([least + 1] * rest + [least] * (work.members - rest))
        return [
            group
            for group in work.group_names()
            if sorted(shares[f"{group}-m{number}"] for number in range(work.members))
            != even
        ]


class Wire:
    """One kept-alive connection to the broker, made when it is needed."""

    def __init__(self, work: Work) -> None:
        parts = urlsplit(work.url)
        self._address = (str(parts.hostname), parts.port or 80)
        self._fixed = (
            f"Host: {parts.netloc}\r\nAuthorization: Bearer {work.api_key}\r\n"
            f"Content-Type: {MSGPACK}\r\nContent-Length: "
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> dict[str, Any]:
        """The decoded answer. Raises AnswerLost or the error that the broker answered."""
        try:
            async with asyncio.timeout(timeout_s):
                status, kind, data = await self._exchanged(
                    path, msgspec.msgpack.encode(body)
                )
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise AnswerLost(f"{path}: {error!r}") from error
        if status >= 400:
            raise from_problem(status, msgspec.json.decode(data) if b"json" in kind else {})
        answer: dict[str, Any] = msgspec.msgpack.decode(data)
        return answer

    async def _exchanged(self, path: str, data: bytes) -> tuple[int, bytes, bytes]:
        """(status, content type, content)."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        writer.write(
            f"POST {path} HTTP/1.1\r\n{self._fixed}{len(data)}\r\n\r\n".encode() + data
        )
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        content = await reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection") == b"close":
            self.close()
        return int(status.split()[1]), headers.get(b"content-type", b""), content

    def close(self) -> None:
        """Gives the connection up."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@dataclass(slots=True)
class Held:
    """A queue that the member was told to own."""

    epoch: int
    acquired: bool = False
    offset: int = 0


class Member:
    """One consumer; `live` is its whole life."""

    def __init__(self, book: Book, group: int, number: int) -> None:
        self._book, self._work = book, book.work
        self.group = book.work.group_names()[group]
        self._topic = book.work.topics[group % len(book.work.topics)]
        self.name = f"{self.group}-m{number}"
        self._incarnation = str(uuid.uuid4())
        # As many connections as the client's threads come to use.
        self._wires = {kind: Wire(book.work) for kind in ("heartbeat", "acquire", "poll")}
        self._consumer_id: str | None = None
        self._generation = self._heard = self._asked_about = 0
        self._queues: dict[int, Held] = {}
        self._interval_s, self._session_s, self._lease_until = 3.0, 15.0, 0.0
        self._due, self._granted, self._news = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )

    def has_lease(self) -> bool:
        """Whether it may go on handling messages."""
        return time.monotonic() < self._lease_until

    async def live(self) -> None:
        """Never returns; ends by being cancelled."""
        try:
            await asyncio.sleep(random.uniform(0, self._work.ramp_s))
            async with asyncio.TaskGroup() as threads:
                threads.create_task(self._stay())
                threads.create_task(self._acquire_all())
                threads.create_task(self._read())
        finally:
            for wire in self._wires.values():
                wire.close()

    async def _post(
        self, kind: str, path: str, body: Any, timeout_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """One request, counted."""
        book, begun = self._book, time.monotonic()
        book.under_way[kind] += 1
        try:
            wire = self._wires.get(kind, self._wires["heartbeat"])
            answer = await wire.post(path, body, timeout_s=timeout_s)
        except CatmqError as error:
            lost = isinstance(error, AnswerLost)
            book.tally.add(kind, "lost" if lost else error.code)
            if kind == "heartbeat" and lost:
                book.broken.append(
                    f"{self.name}: a heartbeat without an answer: {error.detail}"
                )
            raise
        finally:
            book.under_way[kind] -= 1
        book.tally.add(kind, "ok", time.monotonic() - begun)
        self._hear(answer.get("generation", 0))
        return answer

    def _hear(self, generation: int) -> None:
        """Any answer may tell of a new generation; one heartbeat follows at once."""
        if generation > self._heard:
            self._heard = generation
            self._news.set()
        if self._heard > max(self._generation, self._asked_about):
            self._due.set()

    async def _stay(self) -> None:
        """Registers and sends heartbeats."""
        backoff = Backoff(max_ms=3_000)
        while True:
            try:
                if self._consumer_id is None:
                    await self._register()
                    continue
                delay_s = await self._heartbeat(self._consumer_id)
                backoff.reset()
            except CatmqError as error:
                if isinstance(error, Gone):
                    self._lost(error)
                asked_s = 0.0 if self._consumer_id else (error.retry_after_ms or 0) / 1000
                delay_s = max(asked_s, min(backoff.next_s(error), self._interval_s))
            await _wait(self._due, delay_s)
            self._due.clear()

    async def _register(self) -> None:
        body = {
            "name": self.name,
            "incarnation": self._incarnation,
            "topics": [self._topic],
            "sdk": "bench",
        }
        answer = await self._post(
            "register", api_path("groups", self.group, "consumers"), body
        )
        self._session_s = answer["session_timeout_ms"] / 1000
        self._interval_s = answer["heartbeat_interval_ms"] / 1000
        self._consumer_id = answer["consumer_id"]
        self._news.set()

    async def _heartbeat(self, consumer_id: str) -> float:
        """One heartbeat; the seconds until the next."""
        told, sent_at, self._asked_about = self._generation, time.monotonic(), self._heard
        owned = [
            {"queue": queue, "epoch": held.epoch} for queue, held in self._queues.items()
        ]
        body, limit_s = {"generation": told, "owned": owned}, max(1.0, self._session_s / 3)
        answer = await self._post(
            "heartbeat", api_path("consumers", consumer_id, "heartbeat"), body, limit_s
        )
        if 0 < self._lease_until < sent_at:
            self._book.broken.append(
                f"{self.name}: no heartbeat was recorded for a session timeout"
            )
        self._lease_until = sent_at + self._session_s
        if answer["generation"] >= self._generation:
            self._follow(answer)
        if answer["revoked"]:  # released by now; the next heartbeat says so
            return 0.0 if answer["generation"] > told else 0.2
        return self._interval_s * random.uniform(0.9, 1.1)

    def _follow(self, answer: Mapping[str, Any]) -> None:
        """Takes the assignment over; what is revoked is released at once."""
        self._generation = answer["generation"]
        assigned = {one["queue"]: one["epoch"] for one in answer["assigned"]}
        for queue in [*self._queues]:
            if self._queues[queue].epoch != assigned.get(queue):
                self._release(queue)
        for queue, epoch in assigned.items():
            if queue not in self._queues:
                self._queues[queue] = Held(epoch)
                self._granted.set()

    def _release(self, queue: int) -> None:
        del self._queues[queue]
        self._book.drop(queue, self)

    def _lost(self, error: Gone) -> None:
        self._book.broken.append(f"{self.name}: {error.code}")
        self._consumer_id, self._generation, self._heard, self._asked_about = None, 0, 0, 0
        self._lease_until = 0.0
        for queue in [*self._queues]:
            self._release(queue)

    def _fresh(self) -> list[int]:
        """Queues to acquire."""
        return [queue for queue, held in self._queues.items() if not held.acquired]

    async def _acquire_all(self) -> None:
        """Acquires what comes."""
        while True:
            await self._granted.wait()
            self._granted.clear()
            if self._consumer_id is None:
                continue
            try:
                failed = not await self._acquire(self._consumer_id, self._fresh())
            except CatmqError as error:
                failed = True
                await asyncio.sleep((error.retry_after_ms or 0) / 1000)
            if failed:
                await asyncio.sleep(random.uniform(0.1, PAUSE_S))
                self._granted.set()

    async def _acquire(self, consumer_id: str, queues: list[int]) -> bool:
        """Whether nothing is left to be tried again."""
        if not queues:
            return True
        body = {
            "queues": [
                {"queue": queue, "epoch": self._queues[queue].epoch} for queue in queues
            ]
        }
        answer = await self._post(
            "acquire", api_path("consumers", consumer_id, "acquire"), body
        )
        for asked, one in zip(body["queues"], answer["queues"], strict=True):
            held = self._queues.get(one["queue"])
            if held is None or held.epoch != asked["epoch"]:
                continue
            if one["state"] == "ok":
                held.acquired, held.offset = True, one["offset"]
                self._book.take(one["queue"], self)
                self._news.set()
            else:
                self._due.set()
        return not set(queues) & set(self._fresh())

    async def _read(self) -> None:
        """Polls."""
        backoff = Backoff(max_ms=2_000)
        while True:
            self._news.clear()
            unsettled = self._heard > self._generation or bool(self._fresh())
            held = {queue: one for queue, one in self._queues.items() if one.acquired}
            if self._consumer_id is None or (unsettled and not held):
                await _wait(self._news, PAUSE_S)
                continue
            try:
                await self._poll(
                    self._consumer_id,
                    held,
                    UNSETTLED_MS if unsettled else self._work.wait_ms,
                )
                backoff.reset()
            except CatmqError as error:
                await asyncio.sleep(backoff.next_s(error))

    async def _poll(self, consumer_id: str, held: Mapping[int, Held], wait_ms: int) -> None:
        begun, known = time.monotonic(), self._heard
        queues = [
            {"queue": queue, "epoch": one.epoch, "offset": one.offset}
            for queue, one in held.items()
        ]
        body = {
            "generation": known,
            "queues": queues,
            "max_messages": 500,
            "max_bytes": 4 << 20,
        }
        limit_s = wait_ms / 1000 + REQUEST_S
        path = api_path("consumers", consumer_id, "pull")
        answer = await self._post("poll", path, body | {"wait_ms": wait_ms}, limit_s)
        fenced = [one["queue"] for one in answer["queues"] if one["state"] == "fenced"]
        for queue in fenced:
            if self._queues.get(queue) is held[queue]:
                self._release(queue)
                self._due.set()
        if (
            not fenced
            and self._heard == known
            and time.monotonic() - begun < wait_ms / 2000
        ):
            self._book.tally.turned_away += 1
        if pause_ms := answer.get("retry_after_ms", 0):
            await _wait(self._news, pause_ms / 1000)


async def _wait(event: asyncio.Event, limit_s: float) -> bool:
    """Whether the event was set within the time."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
