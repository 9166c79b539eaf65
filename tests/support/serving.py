"""A worker of the server in a thread of the test's process, on a port of its own."""

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


class Serving:
    """A worker that answers by a WSGI application, and clients of it."""

    def __init__(self, application: Any, *, threads: int = 4) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        cfg = Config()
        cfg.set("threads", threads)
        cfg.set("forwarder_headers", "")
        self.worker = made = Worker(
            1, os.getppid(), [self.listener], None, 30, cfg, Log(cfg)
        )
        made.wsgi, made.tpool = application, ThreadPoolExecutor(threads)
        made.epoll = worker.select.epoll()
        made.method_queue.init()
        self.port = self.listener.getsockname()[1]
        self.stack = ExitStack()
        self.thread = threading.Thread(target=made.run, daemon=True)

    @property
    def threads(self) -> int:
        """The number of threads that have been started to serve."""
        return len(self.worker.tpool._threads)

    def client(self, data: bytes = b"") -> socket.socket:
        """A client that has sent something."""
        made = self.stack.enter_context(
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        )
        made.sendall(data)
        return made

    def stop(self) -> None:
        """Do what SIGTERM does, and wait for the end."""
        self.worker.handle_exit(15, None)
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        self.worker.tpool.shutdown()
        for connection in self.worker.connections.values():  # as the end of a process does
            connection.sock.close()
        self.worker.tmp.close()
        self.worker.epoll.close()
