"""slow_clients.py HOST PORT TOPIC EVERY_S KIND=COUNT…: so many clients that hold a server's
attention.

head: a request whose head comes byte by byte. body, small: one with a key, whose body does,
above or below what the server collects before it gives it to a thread. unsent: one without
a key whose body never comes. untaken: an answer that nobody reads. idle: a connection
without a request. A byte is sent every EVERY_S seconds; whoever is sent away comes again
after as long. Prints how many are open, were opened and were sent away, once all are there
and whenever something is asked on stdin, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

KEY = os.environ["CATMQ_API_KEY"]
MOST_A_TURN = 50  # connections opened at once


def beginning(kind: str, topic: str) -> bytes:
    """Return what a client of a kind sends first."""
    send = f"POST /api/v1/topics/{topic}/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    key = f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    texts = {
        "head": send,
        "body": f"{send}{key}Content-Length: 1000000\r\n\r\n{{",
        "small": f"{send}{key}Content-Length: 1000\r\n\r\n{{",
        "unsent": f"{send}Content-Length: 1000000\r\n\r\n",
        "untaken": "GET /api/v1/schema HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20,
        "idle": "",
    }
    return texts[kind].encode()


@dataclass
class Clients:
    """All of them; `due` has those that have to come, by time."""

    host: str
    port: int
    topic: str
    every_s: float
    due: list[tuple[float, str]] = field(default_factory=list)
    opened: int = 0
    ended: int = 0

    def __post_init__(self) -> None:
        self.known: dict[socket.socket, tuple[str, float]] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        """Goes on until stdin ends."""
        whole = len(self.due)
        told = False
        while True:
            self.come()
            self.drip()
            if not told and self.opened >= whole:
                told = True
                self.tell()
            for key, _ in self.selector.select(0.02):
                if key.fileobj is not sys.stdin:
                    self.hear(key.fileobj)  # type: ignore[arg-type]
                elif not sys.stdin.readline():
                    return
                else:
                    self.tell()

    def tell(self) -> None:
        """One line of figures."""
        kinds = [kind for kind, _ in self.known.values()]
        told = {"open": {kind: kinds.count(kind) for kind in set(kinds)}}
        sys.stdout.write(
            json.dumps({**told, "opened": self.opened, "ended": self.ended}) + "\n"
        )
        sys.stdout.flush()

    def come(self) -> None:
        """Opens the connections whose time has come, some at once."""
        now = time.monotonic()
        for _ in range(MOST_A_TURN):
            if not self.due or self.due[0][0] > now:
                return
            _, kind = self.due.pop(0)
            self.opened += 1
            try:
                sock = socket.create_connection((self.host, self.port), 5)
                sock.sendall(beginning(kind, self.topic))
            except OSError:
                self.leave(kind)
                continue
            sock.setblocking(False)
            self.known[sock] = kind, now + self.every_s
            if kind != "untaken":
                self.selector.register(sock, selectors.EVENT_READ)

    def drip(self) -> None:
        """Sends the next byte of those whose turn it is."""
        now = time.monotonic()
        for sock, (kind, at) in list(self.known.items()):
            if at > now:
                continue
            self.known[sock] = kind, now + self.every_s
            with contextlib.suppress(OSError):
                if kind in ("head", "body", "small"):
                    sock.send(b"x")

    def hear(self, sock: socket.socket) -> None:
        """Notices that the server has ended a connection."""
        try:
            if sock.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        kind, _ = self.known.pop(sock)
        self.selector.unregister(sock)
        sock.close()
        self.leave(kind)

    def leave(self, kind: str) -> None:
        """Whoever is sent away comes again."""
        self.ended += 1
        self.due.append((time.monotonic() + self.every_s, kind))


def main() -> None:
    """The command line."""
    host, port, topic, every_s, *kinds = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = Clients(host, int(port), topic, float(every_s))
    for kind, _, count in (one.partition("=") for one in kinds):
        clients.due += [(0.0, kind)] * int(count)
    clients.run()


if __name__ == "__main__":
    main()
