"""Requests that are repeated in threads while something happens to a server; how long each
took.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support.server import Server

LIMIT_S = 30.0  # of one request


class Answer(NamedTuple):
    """One request: when it was sent, status (0: none came), decoded body, seconds."""

    at: float
    status: int
    body: Any
    seconds: float


@dataclass
class Probe:
    """One request to one server, sent again `every_s` seconds after each answer, over new
    connections.
    """

    server: Server
    method: str
    path: str
    body: Any = None
    every_s: float = 0.1
    answers: list[Answer] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{self.method} {self.path}"

    def once(self) -> Answer:
        """Sends it."""
        at = time.monotonic()
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.port, timeout=LIMIT_S
        )
        headers = {
            "Authorization": f"Bearer {self.server.api_key}",
            "Content-Type": "application/json",
        }
        status, body = 0, None
        try:
            connection.request(
                self.method,
                self.path,
                json.dumps(self.body) if self.body else None,
                headers,
            )
            response = connection.getresponse()
            text = response.read()
            status, body = response.status, json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            body = repr(error)
        finally:
            connection.close()
        return Answer(at, status, body, time.monotonic() - at)


@contextmanager
def probing(*probes: Probe) -> Iterator[None]:
    """Sends all of them, each in a thread, for the length of the block."""
    over = threading.Event()

    def work(probe: Probe) -> None:
        while not over.is_set():
            probe.answers.append(probe.once())
            over.wait(probe.every_s)

    threads = [
        threading.Thread(target=work, args=(probe,), daemon=True) for probe in probes
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
