"""The broker of a test over TLS, which a front terminates as a load balancer does."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

from catmq_site.wsgi import application
from tests.support.certificates import Authority


class _Server(ThreadedWSGIServer):
    daemon_threads = True
    context: ssl.SSLContext

    def get_request(self) -> Any:
        accepted, address = super().get_request()
        # The handler does the handshake: a client that refuses the certificate must not block
        # the accepting thread.
        return self.context.wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False
        ), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def tls_front(directory: Path) -> Iterator[tuple[int, Path]]:
    """Serve the broker of this process over TLS. Yield the port on 127.0.0.1 and the CA to
    trust.
    """
    authority = Authority(directory)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    server.set_app(application)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1], authority.ca
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
