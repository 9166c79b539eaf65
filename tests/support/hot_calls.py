"""Requests of the hot calls, as bytes, whose answers show which request they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.support.broker import Broker
from tests.support.members import reader
from tests.support.raw_http import Answer, RawClient
from tests.support.sharing import ShareMember

SEEDED = 20  # messages to pull
PAGE = 100
WAVE = 24  # connections
FOREIGN_QUEUE = 10_000  # numbers above it are of no queue
SESSION_MS = 300_000  # longer than any test
KINDS = ("send", "pull", "commit", "heartbeat", "share", "pull_commit")

# path, body and check of a call
Parts = tuple[str, dict[str, Any], Callable[[Answer], None]]


@dataclass(frozen=True)
class HotCall:
    """A request. `check` raises AssertionError if an answer is not the answer to it."""

    head: bytes
    body: bytes
    check: Callable[[Answer], None]
    method: str = "POST"

    @property
    def data(self) -> bytes:
        return self.head + self.body

    def cuts(self) -> list[int]:
        """Return each place in the head, and a dozen in the body, at which to cut."""
        step = max(1, len(self.body) // 12)
        return [
            *range(1, len(self.head) + 1),
            *range(len(self.head) + 1, len(self.data), step),
        ]


class HotCalls:
    """Makes calls of topics and members of its own, and knows what they must leave behind.

    Topic `single` has SEEDED messages for pulls and commits, topic `sent` takes what is
    sent, and topic `quiet`, for the share group, stays empty.
    """

    def __init__(self, broker: Broker, queue: int) -> None:
        self.broker, self.queue = broker, queue
        self.port = urlsplit(broker.url).port or 0
        self.sent: dict[int, str] = {}  # by offset
        self._number = 0
        self.sent_queue = self._create("sent")
        self._create("quiet")
        seeds = [{"body": f"m{number}", "queue": queue} for number in range(SEEDED)]
        broker.ok("POST", "/topics/single/messages", {"messages": seeds})
        self.member = reader(broker, session_timeout_ms=SESSION_MS)
        self.share_member = ShareMember.join(
            broker, topics=["quiet"], session_timeout_ms=SESSION_MS
        )

    def _create(self, topic: str) -> int:
        answer = self.broker.ok("POST", "/topics", {"name": topic, "queues": 1})
        return int(answer["queues"][0]["queue"])

    def client(self, **options: Any) -> RawClient:
        return RawClient(self.port, **options)

    def head(
        self, path: str, *lines: str, method: str = "POST", version: str = "HTTP/1.1"
    ) -> bytes:
        """Return a head with the header lines that every call has, and `lines` after
        them.
        """
        common = (
            f"{method} {path} {version}",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.broker.api_key}",
            "Content-Type: application/json",
        )
        return "".join(f"{line}\r\n" for line in (*common, *lines, "")).encode("latin-1")

    def make(
        self, kind: str, *lines: str, version: str = "HTTP/1.1", batch_id: str | None = None
    ) -> HotCall:
        """Return the next call of a kind, with a number of its own."""
        path, body, check = self.parts(kind, batch_id)
        encoded = msgspec.json.encode(body)
        length = f"Content-Length: {len(encoded)}"
        return HotCall(self.head(path, *lines, length, version=version), encoded, check)

    def parts(self, kind: str, batch_id: str | None = None) -> Parts:
        """Return path, body and check of the next call of a kind."""
        self._number += 1
        number = self._number
        makers: dict[str, Callable[[int], Parts]] = {
            "send": lambda number: self._send_parts(number, batch_id),
            "pull": self._pull_parts,
            "commit": self._commit_parts,
            "heartbeat": self._heartbeat_parts,
            "share": self._share_parts,
            "pull_commit": self._pull_commit_parts,
        }
        return makers[kind](number)

    def _send_parts(self, number: int, batch_id: str | None) -> Parts:
        message = {"body": f"s{number}", "queue": self.sent_queue}
        body: dict[str, Any] = {"messages": [message]}
        if batch_id is not None:
            body["batch_id"] = batch_id
        return (
            "/api/v1/topics/sent/messages",
            body,
            lambda answer: self._check_sent(answer, f"s{number}"),
        )

    def _pull_parts(self, number: int) -> Parts:
        offset = number % SEEDED
        body = {
            "generation": self.member.generation,
            "queues": [self.member.position(self.queue, offset)],
            "max_messages": 1,
        }

        def check(answer: Answer) -> None:
            (pulled,) = _ok(answer)["queues"]
            assert [message["body"] for message in pulled["messages"]] == [f"m{offset}"]

        return f"/api/v1{self.member.path}/pull", body, check

    def _commit_parts(self, number: int) -> Parts:
        body = {"offsets": self._offsets_to_commit(number)}

        def check(answer: Answer) -> None:
            self._check_committed(_ok(answer)["results"], number)

        return f"/api/v1{self.member.path}/commit", body, check

    def _pull_commit_parts(self, number: int) -> Parts:
        path, body, check_pulled = self._pull_parts(number)

        def check(answer: Answer) -> None:
            check_pulled(answer)
            self._check_committed(_ok(answer)["commit"], number)

        return path, {**body, "commit": self._offsets_to_commit(number)}, check

    def _offsets_to_commit(self, number: int) -> list[dict[str, int]]:
        # The second queue is not this member's, so that the order of the results shows.
        foreign = {"queue": FOREIGN_QUEUE + number, "epoch": 1, "offset": 0}
        return [self.member.position(self.queue, number % SEEDED), foreign]

    def _check_committed(self, results: list[Any], number: int) -> None:
        own, foreign = results
        assert own == {"queue": self.queue, "state": "ok"}
        assert foreign["queue"] == FOREIGN_QUEUE + number and foreign["state"] != "ok"

    def _heartbeat_parts(self, number: int) -> Parts:
        owned = [{"queue": self.queue, "epoch": self.member.owned[self.queue]}]
        body = {"generation": self.member.generation, "owned": owned}

        def check(answer: Answer) -> None:
            assigned = _ok(answer)["assigned"]
            assert [queue["queue"] for queue in assigned] == [self.queue]

        return f"/api/v1{self.member.path}/heartbeat", body, check

    def _share_parts(self, number: int) -> Parts:
        report = {"queue": self.queue, "first": number, "grant": f"g{number}", "all": True}

        def check(answer: Answer) -> None:
            shared = _ok(answer)
            (done,) = shared["done"]
            assert (done["first"], done["grant"]) == (number, f"g{number}")
            assert shared["runs"] == []

        return f"/api/v1{self.share_member.path}/share", {"done": [report]}, check

    def _check_sent(self, answer: Answer, body: str) -> None:
        (stored,) = _ok(answer)["results"]
        assert stored["queue"] == self.sent_queue
        offset = stored["offset"]
        assert self.sent.setdefault(offset, body) == body

    def exchange(self, calls: Sequence[HotCall], pieces: Iterable[bytes]) -> None:
        """Send pieces of calls on a connection of their own, and check all answers."""
        with self.client() as client:
            client.send_pieces(pieces)
            self.check_answers(client, calls)

    def exchange_many(
        self,
        exchanges: Iterable[tuple[Sequence[HotCall], list[bytes]]],
        *,
        wave_size: int = WAVE,
    ) -> None:
        """Send many exchanges, each as calls and the pieces of their bytes, in waves of
        `wave_size` connections that are used again and again.

        A wave is sent before its first answer is read: heartbeats and commits of many
        requests share a transaction, and each alone would wait for it.
        """
        with ExitStack() as stack:
            clients = [stack.enter_context(self.client()) for _ in range(wave_size)]
            remaining = iter(exchanges)
            while wave := list(islice(remaining, wave_size)):
                for client, (_, pieces) in zip(clients, wave, strict=False):
                    client.send_pieces(pieces)
                for client, (calls, _) in zip(clients, wave, strict=False):
                    self.check_answers(client, calls)

    def check_answers(self, client: RawClient, calls: Sequence[HotCall]) -> None:
        """Read the answers to calls that must all succeed."""
        for call in calls:
            call.check(client.answer(call.method))

    def check_stored(self) -> None:
        """Check that topic `sent` has exactly the messages whose sends were answered."""
        stored: dict[int, str] = {}
        while page := self.broker.ok(
            "GET",
            f"/topics/sent/messages?queue={self.sent_queue}"
            f"&offset={len(stored)}&limit={PAGE}",
        )["messages"]:
            stored |= {message["offset"]: message["body"] for message in page}
        assert stored == self.sent

    def committed(self) -> int:
        """Return the offset that the reader has committed."""
        (queue,) = self.broker.ok("GET", "/groups/readers/offsets")["queues"]
        return int(queue["committed"])


def _ok(answer: Answer) -> Any:
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json", answer
    return answer.json
