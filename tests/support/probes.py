"""Requests that threads repeat while something happens to a server, with the duration of
each.
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

LIMIT_S = 30.0  # per request


class Answer(NamedTuple):
    """A request: when it was sent, its status (0: no answer), decoded body, and seconds."""

    at: float
    status: int
    body: Any
    seconds: float


@dataclass
class Probe:
    """A request to a server, repeated `every_s` seconds after each answer, over new
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
        """The method and path of the request."""
        return f"{self.method} {self.path}"

    def once(self) -> Answer:
        """Send the request once."""
        sent_at = time.monotonic()
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
        return Answer(sent_at, status, body, time.monotonic() - sent_at)


@contextmanager
def probing(*probes: Probe) -> Iterator[None]:
    """Repeat all probes during the block, each in a thread."""
    stopped = threading.Event()

    def work(probe: Probe) -> None:
        while not stopped.is_set():
            probe.answers.append(probe.once())
            stopped.wait(probe.every_s)

    threads = [
        threading.Thread(target=work, args=(probe,), daemon=True) for probe in probes
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(LIMIT_S)
