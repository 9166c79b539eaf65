"""Checks the way to a broker: does a proxy cut long polls, or hold back answers?

A consumer waits for messages in requests that the broker holds for up to 30 s. A proxy with
a shorter time limit ends each of them with an error. The broker cannot see that, so the
client holds a request itself and compares.

A proxy ends the connection of the client and opens its own, from another port. So if the
broker sees the client's port, nothing is in between, and the check ends at once.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from catmq_client.cli.connection import Brokers
from catmq_client.http.connections import checked_verify

PATH = "/api/v1/doctor/connection"
CONNECT_TIMEOUT_S = 5.0
# An answer may be this late, which covers slow networks and busy machines.
SLACK_S = 3.0
PARTS_MS = 3_000  # pause between the first byte of an answer and the rest


class Answer(NamedTuple):
    """`first_s` and `last_s` are the times of the first and the last byte of the body, in
    seconds after the request. `own_port` is the client's end of the connection.
    """

    status: int
    body: dict[str, Any]
    own_port: int
    first_s: float
    last_s: float


class Cut(Exception):
    """The connection ended without an answer of a broker, `after_s` after the request."""

    def __init__(self, reason: str, after_s: float) -> None:
        super().__init__(reason)
        self.after_s = after_s


class ConnectionCheck(threading.Thread):
    """Checks the way to the broker at `url`. `findings` are complete after `join()`; `done`
    is False if the broker has no answer to compare with.
    """

    def __init__(self, url: str, brokers: Brokers) -> None:
        super().__init__(name=f"connection to {url}", daemon=True)
        self.url = url
        self.done: bool = False
        self.findings: list[dict[str, str]] = []
        self._key = brokers.api_key
        self._verify = checked_verify(brokers.verify)

    def run(self) -> None:
        # Faults of the first request are reported by the doctor itself, which asks the same
        # brokers.
        with suppress(Cut):
            first = self._get(wait_ms=0)
            # An older broker has no such URL.
            if first.status != 200 or "peer_port" not in first.body:
                return
            self.done = True
            if first.body["peer_port"] != first.own_port:
                self._check_proxy(first.body["max_wait_ms"])

    def _check_proxy(self, max_wait_ms: int) -> None:
        """Hold a request for the longest wait of a pull, and another that is answered in two
        parts.
        """
        parts = threading.Thread(target=self._check_parts, daemon=True)
        parts.start()
        waits_s = max_wait_ms / 1000
        try:
            answer = self._get(wait_ms=max_wait_ms)
        except Cut as cut:
            self._report_cut(waits_s, cut.after_s, str(cut))
        else:
            if answer.status != 200:
                self._report_cut(waits_s, answer.last_s, f"HTTP {answer.status}")
        parts.join()

    def _check_parts(self) -> None:
        # A request that is cut here is cut in the longer wait, too, and reported there.
        with suppress(Cut):
            answer = self._get(wait_ms=PARTS_MS, form="parts")
            waited_s = answer.body.get("waited_ms", 0) / 1000
            # A broker that stops, or has no place to wait, answers both parts at once.
            if answer.status == 200 and 0.75 * waited_s < answer.first_s and waited_s > 1:
                self._report_buffer(answer.last_s)

    def _report_cut(self, waits_s: float, after_s: float, reason: str) -> None:
        self.findings.append(
            {
                "severity": "error",
                "key": "proxy_cuts",
                "kind": "proxy",
                "name": self.url,
                "cause": f"A proxy ended a request after {after_s:.1f} s that the broker holds "
                f"for {waits_s:g} s: {reason}.",
                "why": "Consumers wait for messages in such requests. Each one that is cut is an "
                "error in their logs, and they get its messages later.",
                "remedy": f"Raise the time limits of the proxy above {waits_s:g} s, for instance "
                "to 60 s: proxy_read_timeout in nginx, timeout server in HAProxy, the idle "
                "timeout of a load balancer. Or set CATMQ_MAX_WAIT_MS of all brokers below them.",
            }
        )

    def _report_buffer(self, held_s: float) -> None:
        self.findings.append(
            {
                "severity": "warning",
                "key": "proxy_buffers",
                "kind": "proxy",
                "name": self.url,
                "cause": f"A proxy held back the begin of an answer for {held_s:.1f} s, until it "
                "had all of it.",
                "why": "It keeps whole answers, up to 8 MiB each, in its memory or in files before "
                "a consumer gets the first byte.",
                "remedy": "Switch buffering off for this path: proxy_buffering off in nginx, "
                "flush_interval -1 in Caddy.",
            }
        )

    def _get(self, **parameters: Any) -> Answer:
        """Send a request on a connection of its own. Raises Cut."""
        parts = urlsplit(self.url)
        wait_s = parameters["wait_ms"] / 1000
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        started_at = time.monotonic()
        try:
            with closing(self._connect(parts.hostname or "", parts.port)) as connection:
                assert connection.sock is not None  # noqa: S101 - it is connected
                own_port = connection.sock.getsockname()[1]
                connection.sock.settimeout(wait_s + SLACK_S + CONNECT_TIMEOUT_S)
                started_at = time.monotonic()
                headers = {
                    "Authorization": f"Bearer {self._key}",
                    "Accept": "application/json",
                }
                connection.request(
                    "GET", f"{parts.path.rstrip('/')}{PATH}?{query}", headers=headers
                )
                response = connection.getresponse()
                first = response.read(1)
                first_s = time.monotonic() - started_at
                text = first + response.read()
                last_s = time.monotonic() - started_at
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise Cut(reason, time.monotonic() - started_at) from None
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        # A proxy answers its own errors with a page.
        body = body if isinstance(body, dict) else {}
        return Answer(response.status, body, own_port, first_s, last_s)

    def _connect(self, host: str, port: int | None) -> http.client.HTTPConnection:
        if self.url.startswith("https:"):
            context = ssl.create_default_context()
            if self._verify is False:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            else:
                path = DEFAULT_CA_BUNDLE_PATH if self._verify is True else str(self._verify)
                context.load_verify_locations(path)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        return connection


def start_checks(brokers: Brokers) -> Sequence[ConnectionCheck]:
    """Check the ways to all listed brokers at the same time, in threads of their own."""
    # A transport that replaces the network has no way to check.
    if brokers.transport is not None:
        return []
    checks = [ConnectionCheck(url, brokers) for url in brokers.listed]
    for check in checks:
        check.start()
    return checks
