"""A worker of the server in a thread of the test process, on its own port."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from gunicorn.config import Config

from catmq_site.server import worker
from catmq_site.server.worker import Log, Worker

LIMIT_S = 10.0
KEEPALIVE_S = 75  # as the server's: on a busy machine a client may pause for seconds


class Serving:
    """A worker that serves a WSGI application, and clients of it."""

    def __init__(self, application: Any, *, threads: int = 4) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        cfg = Config()
        cfg.set("threads", threads)
        cfg.set("forwarder_headers", "")
        cfg.set("keepalive", KEEPALIVE_S)
        self.worker = worker_thread = Worker(
            1, os.getppid(), [self.listener], None, 30, cfg, Log(cfg)
        )
        worker_thread.wsgi, worker_thread.tpool = application, ThreadPoolExecutor(threads)
        worker_thread.epoll = worker.select.epoll()
        worker_thread.method_queue.init()
        self.port = self.listener.getsockname()[1]
        self.stack = ExitStack()
        self.thread = threading.Thread(target=worker_thread.run, daemon=True)

    @property
    def threads(self) -> int:
        """The number of serving threads started so far."""
        return len(self.worker.tpool._threads)

    def client(self, data: bytes = b"") -> socket.socket:
        """Connect a client and send `data`."""
        client_socket = self.stack.enter_context(
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        )
        client_socket.sendall(data)
        return client_socket

    def stop(self) -> None:
        """Stop the worker as SIGTERM does, and wait for its end."""
        self.worker.handle_exit(15, None)
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        self.worker.tpool.shutdown()
        # The end of a process would close these sockets.
        for connection in self.worker.connections.values():
            connection.sock.close()
        self.worker.tmp.close()
        self.worker.epoll.close()
