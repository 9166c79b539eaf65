"""A TCP proxy for a MySQL or MariaDB server that changes the server in the middle of a
transaction, as a proxy that balances statements does.

    with Switching(port, password=password, schema=schema) as proxy:
        proxy.switch_at = b"COMMIT"
        … connect to proxy.port

The first string of SQL that contains `switch_at`, and all after it, go over another
connection, which the proxy made before with its own account. `switched` counts them.
"""

from __future__ import annotations

import os
import select
import socket
import socketserver
import threading
from dataclasses import dataclass
from typing import Any

from tests.support.posing import COM_QUERY, HEADER, read_packet


@dataclass
class Switching:
    """A proxy in front of the server at `target`; `other` is the port that it changes to."""

    target: int
    password: str
    schema: str
    other: int = 0
    switch_at: bytes = b""
    switched: int = 0

    def __enter__(self) -> Switching:
        self._server = _Listener(("127.0.0.1", 0), _Connection)
        self._server.switching = self
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def connect_other(self) -> Any:
        """Return a connection of the kind that clients make, without their settings."""
        import MySQLdb
        from MySQLdb.constants import CLIENT

        return MySQLdb.connect(
            host="127.0.0.1", port=self.other or self.target, user="catmq",
            password=self.password, db=self.schema, charset="utf8mb4", autocommit=True,
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS, ssl_mode="DISABLED",
        )  # fmt: skip


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    switching: Switching


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Pass packets to a server and its bytes back, until either side closes."""
        switching = self.server.switching
        spare = switching.connect_other()
        # The former server keeps what was begun there until the client leaves.
        with (
            socket.create_connection(("127.0.0.1", switching.target), timeout=30) as former,
            socket.socket(fileno=os.dup(spare.fileno())) as other,
        ):
            server = former
            while True:
                readable, _, _ = select.select([self.request, server], [], [])
                if server in readable:
                    piece = server.recv(65_536)
                    if not piece:
                        break
                    self.request.sendall(piece)
                    continue
                packet = read_packet(self.request)
                if not packet:
                    break
                if server is former and self._is_due(packet):
                    switching.switched += 1
                    server = other
                server.sendall(packet)
        spare.close()

    def _is_due(self, packet: bytes) -> bool:
        at = self.server.switching.switch_at
        is_query = packet[3] == 0 and packet[HEADER] == COM_QUERY
        return bool(at) and is_query and at in packet
