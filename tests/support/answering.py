"""An HTTP server that answers as a test defines, and can break connections."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, bytes] | None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # the default of 5 makes a burst of connections wait a second


class Server:
    """Answers with `answer(request)`. If that is None, it cuts the connection."""

    def __init__(self, port: int = 0) -> None:
        """Listen on a port; 0 chooses a free port."""
        self.requests: list[dict[str, Any]] = []
        self.peers: set[tuple[str, int]] = set()
        self._connections: list[socket.socket] = []
        self.answer: Callable[[dict[str, Any]], Answer] = lambda request: (
            200,
            "application/json",
            b'{"ok":1}',
        )
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # With Nagle's algorithm each answer on a kept connection takes 40 ms.
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                # Kept connections outlive server_close(), so close() breaks them.
                server._connections.append(self.connection)

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = {"path": self.path, "headers": dict(self.headers), "body": body}
                server.requests.append(request)
                server.peers.add(self.client_address)
                answer = server.answer(request)
                if answer is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                try:
                    self.send_response(answer[0])
                    self.send_header("Content-Type", answer[1])
                    self.send_header("Content-Length", str(len(answer[2])))
                    self.end_headers()
                    self.wfile.write(answer[2])
                except ConnectionError:  # the client waits no longer
                    self.close_connection = True

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self._http = _Listener(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and break all connections, like a killed process."""
        self._http.shutdown()
        # First no new connections, then the open connections are broken.
        self._http.server_close()
        self._thread.join(5)
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def answering() -> Iterator[Server]:
    """Run a server during the block."""
    server = Server()
    try:
        yield server
    finally:
        server.close()


def unused_url() -> str:
    """Return a URL on which no server listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def problem(status: int, code: str, **more: Any) -> Answer:
    """Return an answer of type application/problem+json."""
    return (
        status,
        "application/problem+json",
        json.dumps({"code": code, "detail": code, **more}).encode(),
    )


def row(url: Any, **more: Any) -> dict[str, Any]:
    """Return a broker in service, as the list of brokers contains it."""
    name = str(url).rpartition(":")[2]
    return {
        "name": name,
        "url": url,
        "state": "in",
        "alive": True,
        "stopped_at_ms": None,
        **more,
    }
