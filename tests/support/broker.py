"""A broker inside the test's process: the real views behind a worker of the server, and its
loops.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import requests

from brokerapi.http import draining
from catmq_site.background import table
from catmq_site.background.loop_threads import LoopThreads
from catmq_site.server import worker
from catmq_site.server.worker import Worker
from catmq_site.wsgi import application
from metadata import actors
from metadata.users import api_keys
from tests.support.serving import Serving

MSGPACK = "application/msgpack"
THREADS = 64
# Other loops start when a test lasts: half of all end before, and few wait for what those
# do. Starting and ending them costs more than the requests of a test.
OTHER_LOOPS_AFTER_S = 0.3
LOOPS_AT_ONCE = (
    *("metadata", "heartbeats", "grants", "snapshot", "broker"),
    *("bell", "heads", "nodes", "circuits", "rebalances", "java-beats"),
)


class Broker:
    """Where it listens, and requests to it with an API key."""

    def __init__(self, url: str, api_key: str, worker: Worker | None = None) -> None:
        self.url = url
        self.api_key = api_key
        self.worker = worker

    def call(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> requests.Response:
        """The answer to a request whose body, if not bytes, is sent as JSON; `path` is
        behind /api/v1.
        """
        headers = {"Authorization": f"Bearer {self.api_key}", **options.pop("headers", {})}
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        data = (
            body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        )
        url = path if path.startswith("http") else f"{self.url}/api/v1{path}"
        return requests.request(
            method, url, data=data, headers=headers, timeout=40, **options
        )

    def packed(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request in MessagePack, decoded."""
        answer = self.call(
            method, path, msgspec.msgpack.encode(body), headers={"Content-Type": MSGPACK}
        )
        assert answer.headers["Content-Type"] == MSGPACK, answer.text
        return msgspec.msgpack.decode(answer.content)

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The decoded answer of a request that must succeed."""
        answer = self.call(method, path, body, **options)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def as_key(self, rights: Mapping[str, list[str]]) -> Broker:
        """The same broker asked with a new key of these rights."""
        name = f"key-{uuid.uuid4().hex}"
        _, plaintext = api_keys.create(
            name=name, rights=rights, actor=actors.command("test")
        )
        return Broker(self.url, plaintext, self.worker)


def problem(
    answer: requests.Response, status: int, code: str, field: str | None = None
) -> dict[str, Any]:
    """The problem an answer holds, after checking that it is one, and which."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["code"]) == (status, code), found
    assert found["status"] == status
    assert found["type"] == f"/api/v1/docs#{code}"
    assert found["title"] and found["detail"]
    assert isinstance(found["retriable"], bool)
    if field is not None:
        assert field in [error["field"] for error in found["errors"]], found
    return found


@contextmanager
def running() -> Iterator[Broker]:
    """A broker with an empty metadata database and a key that may do everything."""
    _, plaintext = api_keys.create(
        name="test", rights={"admin": ["*"]}, actor=actors.command("test")
    )
    serving = Serving(application, threads=THREADS)
    serving.thread.start()
    url = f"http://127.0.0.1:{serving.port}"
    java_beats = next(loop for loop in table.java_loops() if loop.name == "java-beats")
    listed = [*table.loops(url=url), java_beats]
    loops = LoopThreads([loop for loop in listed if loop.name in LOOPS_AT_ONCE])
    other_loops = LoopThreads([loop for loop in listed if loop.name not in LOOPS_AT_ONCE])
    timer = threading.Timer(OTHER_LOOPS_AFTER_S, other_loops.start)
    loops.start()
    timer.start()
    try:
        yield Broker(url, plaintext, serving.worker)
    finally:
        draining.stop()
        # clients that are left open are not waited for
        with mock.patch.object(worker, "CLOSE_S", 0.0):
            serving.stop()
        timer.cancel()
        other_loops.stop()
        loops.stop()
        draining.resume()
