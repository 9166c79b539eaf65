"""A reverse proxy that serves a server under a path of its host, like nginx with `location
/catmq/`.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEPT_BY_PROXY = ("connection", "keep-alive", "transfer-encoding")  # hop-by-hop headers


class PrefixProxy(ThreadingHTTPServer):
    """Passes requests below `prefix` on. All others get a 404 and are collected in
    `outside`.

    `removes`: the server gets the path without the prefix.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, target_port: int, prefix: str, *, removes: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_port, self.prefix, self.removes = target_port, prefix, removes
        self.outside: list[str] = []

    @property
    def host_url(self) -> str:
        """The URL of the whole host, without the prefix."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The URL of the server through the proxy."""
        return f"{self.host_url}{self.prefix}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PrefixProxy

    def handle_request(self) -> None:
        """Pass a request on, and its answer back."""
        prefix = self.server.prefix
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != prefix and not self.path.startswith((f"{prefix}/", f"{prefix}?")):
            self.server.outside.append(self.path)
            return self.answer(
                404, [("Content-Type", "text/plain")], b"another site of this host"
            )
        path = self.path.removeprefix(prefix) or "/" if self.server.removes else self.path
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.server.target_port, timeout=60
        )
        try:
            connection.request(self.command, path, body or None, dict(self.headers.items()))
            answer = connection.getresponse()
            self.answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer with its length."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in (*KEPT_BY_PROXY, "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def prefix_proxy(target_port: int, prefix: str, *, removes: bool) -> Iterator[PrefixProxy]:
    """Run a proxy during the block."""
    proxy = PrefixProxy(target_port, prefix, removes=removes)
    thread = threading.Thread(
        target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(10)
