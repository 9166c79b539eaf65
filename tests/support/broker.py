"""A broker inside the test process: the real views in a worker of the server, and its
background loops.
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
# Other loops start only if a test lasts longer: half of the tests end earlier, and few need
# these loops. Starting and stopping them costs more than the requests of a test.
OTHER_LOOPS_AFTER_S = 0.3
LOOPS_AT_ONCE = (
    *("metadata", "heartbeats", "grants", "snapshot", "broker"),
    *("bell", "heads", "nodes", "circuits", "rebalances", "java-beats"),
)


class Broker:
    """The URL of a broker, and requests to it with an API key."""

    def __init__(self, url: str, api_key: str, worker: Worker | None = None) -> None:
        self.url = url
        self.api_key = api_key
        self.worker = worker

    def call(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> requests.Response:
        """Send a request and return the answer.

        A body that is not bytes is sent as JSON. `path` is relative to /api/v1, or a whole
        URL.
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
        """Send a request in MessagePack and return the decoded answer."""
        answer = self.call(
            method, path, msgspec.msgpack.encode(body), headers={"Content-Type": MSGPACK}
        )
        assert answer.headers["Content-Type"] == MSGPACK, answer.text
        return msgspec.msgpack.decode(answer.content)

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request that must succeed and return the decoded answer."""
        answer = self.call(method, path, body, **options)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def as_key(self, rights: Mapping[str, list[str]]) -> Broker:
        """Return the same broker, called with a new API key that has these rights."""
        name = f"key-{uuid.uuid4().hex}"
        _, plaintext = api_keys.create(
            name=name, rights=rights, actor=actors.command("test")
        )
        return Broker(self.url, plaintext, self.worker)


def problem(
    answer: requests.Response, status: int, code: str, field: str | None = None
) -> dict[str, Any]:
    """Return the decoded problem of an answer, after checking its status, code and form."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert body["status"] == status
    assert body["type"] == f"/api/v1/docs#{code}"
    assert body["title"] and body["detail"]
    assert isinstance(body["retriable"], bool)
    if field is not None:
        assert field in [error["field"] for error in body["errors"]], body
    return body


@contextmanager
def running() -> Iterator[Broker]:
    """Run a broker with an empty metadata database and an API key with all rights."""
    _, plaintext = api_keys.create(
        name="test", rights={"admin": ["*"]}, actor=actors.command("test")
    )
    serving = Serving(application, threads=THREADS)
    serving.thread.start()
    url = f"http://127.0.0.1:{serving.port}"
    java_beats = next(loop for loop in table.java_loops() if loop.name == "java-beats")
    all_loops = [*table.loops(url=url), java_beats]
    loops = LoopThreads([loop for loop in all_loops if loop.name in LOOPS_AT_ONCE])
    other_loops = LoopThreads(
        [loop for loop in all_loops if loop.name not in LOOPS_AT_ONCE]
    )
    timer = threading.Timer(OTHER_LOOPS_AFTER_S, other_loops.start)
    loops.start()
    timer.start()
    try:
        yield Broker(url, plaintext, serving.worker)
    finally:
        draining.stop()
        # Do not wait for clients that tests left open.
        with mock.patch.object(worker, "CLOSE_S", 0.0):
            serving.stop()
        timer.cancel()
        other_loops.stop()
        loops.stop()
        draining.resume()
