"""raw.py TOPIC JOURNAL EVERY_MS FIRST SEED PAD: sends batches over bare HTTP, without our
client.

It names a batch id and no queue. What it does not know the outcome of it repeats with the
same id through the next broker of CATMQ_URL, until one answers for good. It also repeats
what was acknowledged a while ago: that must get the same receipts, or be refused. The
bodies are numbers from FIRST on, and a header has PAD bytes. Runs until SIGTERM, and then
until its last batch has an outcome; see tests/support/journal.py for what it writes.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from collections import deque
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

from tests.support.journal import Journal
from tests.support.terminated import Terminated

TIMEOUT_S = 12.0  # longer than a broker tries
GIVE_UP_S = 150.0
PAUSE_S = 0.1  # between two tries
MOST = 5  # messages in a batch
REPEATED = 0.3  # after so many batches in one, an older one is sent again
KEPT = 50  # batches that may be
KEYED = 0.5  # share of batches with one key for all their messages


class Broken(Exception):
    """There was no whole answer: it may or may not be stored."""


class Raw:
    """Sends one batch after the other."""

    def __init__(
        self, topic: str, journal: Journal, first: int, rng: random.Random
    ) -> None:
        self.path = f"/api/v1/topics/{topic}/messages"
        self.journal, self.rng, self.first = journal, rng, first
        self.numbers = 0
        self.common: dict[str, Any] = {}  # what all messages have
        self.known: deque[tuple[dict[str, Any], list[int]]] = deque(maxlen=KEPT)
        self.never = threading.Event()
        urls = os.environ["CATMQ_URL"].split(",")
        self.brokers = cycle(
            [
                http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
                for url in urls
            ]
        )
        self.headers = {
            "Authorization": f"Bearer {os.environ['CATMQ_API_KEY']}",
            "Content-Type": "application/json",
        }

    def run(self, every_s: float, terminated: Terminated) -> None:
        """Sends until stopped."""
        self.broker = next(self.brokers)
        due = time.monotonic()
        while not terminated.wait(due - time.monotonic()):
            self.send(due)
            due = max(due + every_s, time.monotonic())
        self.journal.tell("left", numbers=[self.first, self.first + self.numbers])

    def send(self, due: float) -> None:
        """One batch, until it has an outcome."""
        first, count = self.first + self.numbers, self.rng.randint(1, MOST)
        self.numbers += count
        numbers = list(range(first, first + count))
        key = {"key": f"k{self.rng.randrange(20)}"} if self.rng.random() < KEYED else {}
        more = {**key, **self.common}
        body = {
            "batch_id": batch_id(),
            "messages": [{"body": str(one), **more} for one in numbers],
        }
        self.journal.tell("asked", batch=body["batch_id"], queue=None, numbers=numbers)
        asked = time.monotonic()
        results = self.outcome(body, asked + GIVE_UP_S)
        if not isinstance(results, list):
            self.journal.tell("error", error=f"batch {body['batch_id']}: {results}")
            return
        self.tell("sent", numbers, results, {"asked": asked, "due": due, "took_s": 0.0})
        self.known.append((body, numbers))
        if self.rng.random() < REPEATED:
            self.repeat(*self.rng.choice(self.known))

    def repeat(self, body: dict[str, Any], numbers: list[int]) -> None:
        """Sends what was acknowledged once more, through the next broker."""
        self.broker = next(self.brokers)
        results = self.outcome(body, time.monotonic() + GIVE_UP_S)
        if isinstance(results, list):
            self.tell("again", numbers, results, {})
        else:
            self.journal.tell("refused", batch=body["batch_id"], error=results)

    def tell(
        self, what: str, numbers: list[int], results: list[Any], more: dict[str, float]
    ) -> None:
        """Writes receipts down."""
        for number, result in zip(numbers, results, strict=True):
            self.journal.tell(
                what, queue=result["queue"], offset=result["offset"], number=number, **more
            )

    def outcome(self, body: dict[str, Any], end: float) -> list[Any] | str:
        """The receipts of a batch, tried through one broker after the other, or why there
        will be none.
        """
        said = ""
        while time.monotonic() < end:
            try:
                status, answer = self.post(body)
            except Broken as error:
                said = str(error)
            else:
                refused = [
                    one["error"] for one in answer.get("results", ()) if "error" in one
                ]
                if status == 200 and not refused:
                    return list(answer["results"])
                problem = refused[0] if refused else answer
                said = f"{status} {problem.get('code')}: {problem.get('detail')}"
                if not problem.get("retriable"):
                    break
            self.broker = next(self.brokers)
            self.never.wait(PAUSE_S)
        return said

    def post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """One try: status and answer. Raises Broken."""
        try:
            self.broker.request("POST", self.path, json.dumps(body), self.headers)
            response = self.broker.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.broker.close()
            raise Broken(repr(error)) from error


def batch_id() -> str:
    """A UUID of version 7."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits = f"{value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def main() -> None:
    """Runs until SIGTERM."""
    topic, path, every_ms, first, seed, pad = sys.argv[1:]
    journal, terminated = Journal(path), Terminated()
    raw = Raw(topic, journal, int(first), random.Random(int(seed)))
    raw.common = {"headers": {"pad": "x" * int(pad)}} if int(pad) else {}
    journal.tell("up")
    raw.run(int(every_ms) / 1000, terminated)


if __name__ == "__main__":
    main()
