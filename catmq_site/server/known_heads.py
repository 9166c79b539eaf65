"""Heads of requests that gunicorn's parser has accepted before.

A client repeats its heads: the same path, key and formats, and often the same length of the
body. Parsing a head and making the WSGI environ of it took about a quarter of the Python
time of a small send, and the result depends on nothing but the bytes of the head and the
two ends of the connection. So it is remembered, and the next request with the same head
gets a copy. gunicorn's parser stays the only judge of a head: what it has not accepted is
never remembered.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from catmq_site.server.channels import Channel
from catmq_site.server.connections import SMALL_BODY_BYTES, Connection

MAX_HEADS = 1024  # per worker; with its environ a head takes about 5 KB
MAX_HEAD_BYTES = 2048  # a longer head is not remembered
# Values of the environ that belong to one request or connection.
OWN_VALUES = (
    "wsgi.input", "wsgi.early_hints", "gunicorn.socket", "REMOTE_ADDR", "REMOTE_PORT",
)  # fmt: skip
# Headers that change how the body is read, or what the connection is used for; and Cookie:
# pages are rarely repeated, and sessions of browsers do not belong into this memory.
SPECIAL_HEADERS = frozenset(("COOKIE", "EXPECT", "TRAILER", "TRANSFER-ENCODING", "UPGRADE"))


class KnownHead:
    """A head of HTTP/1.1 after which the connection stays open, and the environ made of it.

    gunicorn's Response takes it as its request.
    """

    __slots__ = ("_environ", "body_bytes", "method")
    version = (1, 1)
    body = None  # no reader: the whole body is in the environ

    def __init__(self, method: str, environ: Mapping[str, Any]) -> None:
        self.method = method
        self.body_bytes = int(environ.get("CONTENT_LENGTH", 0))
        self._environ = {
            name: value for name, value in environ.items() if name not in OWN_VALUES
        }

    def should_close(self) -> bool:
        return False

    def environ(
        self, body: bytes, connection: Connection, channel: Channel
    ) -> dict[str, Any]:
        """Return the environ of a request with this head."""
        environ = self._environ.copy()
        environ["wsgi.input"], environ["gunicorn.socket"] = io.BytesIO(body), channel
        client = connection.client
        if isinstance(client, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = client[0], str(client[1])
        else:  # of a Unix domain socket
            environ["REMOTE_ADDR"] = client if isinstance(client, str) else client.decode()
        return environ


class KnownHeads:
    """The remembered heads of a worker. Any thread may call the methods."""

    def __init__(self) -> None:
        # By the ends of the connection and the bytes of the head.
        self._heads: dict[tuple[Any, ...], KnownHead] = {}

    def find(self, connection: Connection, head: bytes) -> KnownHead | None:
        """Return what is remembered of these bytes from this address."""
        return self._heads.get((connection.peer, connection.server, head))

    def remember(
        self,
        connection: Connection,
        head: bytes,
        request: Any,
        environ: Mapping[str, Any],
    ) -> None:
        """Remember what gunicorn made of a head: its Request and the environ, before a view
        has changed it. Does nothing for a head that is long or special.
        """
        if (
            not 0 < len(head) <= MAX_HEAD_BYTES
            or request.version != (1, 1)
            or request.should_close()
            or any(name in SPECIAL_HEADERS for name, _ in request.headers)
        ):
            return
        known_head = KnownHead(request.method, environ)
        if known_head.body_bytes > SMALL_BODY_BYTES:
            return
        # A client with ever new heads costs the others their remembered heads, now and then,
        # and no memory.
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[connection.peer, connection.server, head] = known_head
