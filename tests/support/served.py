"""A FakeBroker over HTTP, for programs that a test runs as separate processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from catmq_client.errors import CatmqError
from catmq_client.testing import FakeBroker

MSGPACK = "application/msgpack"


class Handler(BaseHTTPRequestHandler):
    """Handles requests in MessagePack, which the client sends if msgspec is installed."""

    protocol_version = "HTTP/1.1"
    broker: FakeBroker

    def answer(self) -> None:
        """Pass the request to the broker and send its answer."""
        length = int(self.headers.get("Content-Length") or 0)
        body = msgspec.msgpack.decode(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        try:
            result = self.broker.request(
                self.command, url.path, body=body, params=dict(parse_qsl(url.query))
            )
            self.reply(200, msgspec.msgpack.encode(result), MSGPACK)
        except CatmqError as error:
            problem = {
                "detail": error.detail,
                "code": error.code,
                "retriable": error.retriable,
            }
            self.reply(
                error.status or 503,
                msgspec.json.encode(problem),
                "application/problem+json",
            )

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def reply(self, status: int, body: bytes, kind: str) -> None:
        """Send an answer. A killed client no longer reads it."""
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def served(broker: FakeBroker) -> Iterator[str]:
    """Run an HTTP server for a broker and yield its URL."""
    handler = type("BrokerHandler", (Handler,), {"broker": broker})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
