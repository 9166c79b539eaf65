"""A healthy installation for the doctor, and what it finds there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from messagestore.doctor import diagnosis
from messagestore.doctor.findings import Finding
from metadata.actors import command
from metadata.brokers import discovery, fingerprints
from metadata.db.clock import database_now
from metadata.models import Broker, BrokerProcess
from metadata.release import VERSION

ACTOR = command("test")


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write no line for each request."""


@contextmanager
def live_broker(name: str = "b1", **columns: Any) -> Iterator[Broker]:
    """Yield the row of a live broker, whose address answers for the block."""
    fingerprints.record_keys()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        serving = Thread(target=server.serve_forever, args=[0.01], daemon=True)
        serving.start()
        now = database_now()
        values: dict[str, Any] = {
            "url": f"http://127.0.0.1:{server.server_port}",
            "version": VERSION,
            "started_at": now,
            # A minute of tests without a heartbeat must not end its life.
            "last_seen": now + timedelta(seconds=9),
            "incarnation": str(uuid.uuid4()),
        }
        row = Broker.objects.create(name=name, **(values | columns))
        add_worker(row, f"{name}/1")
        discovery.evict()
        yield row
        server.shutdown()


def add_worker(broker: Broker, name: str, *, acknowledged: int = 1 << 40) -> None:
    """Insert a worker of a broker that has loaded every change, or fewer."""
    BrokerProcess.objects.create(
        name=name,
        broker=broker,
        acknowledged=acknowledged,
        last_seen=database_now() + timedelta(seconds=30),
    )


def findings() -> list[Finding]:
    """Return what the doctor finds, each with complete texts."""
    found = list(diagnosis.examine(actor=ACTOR).findings)
    for finding in found:
        # The values must fit the placeholders of all three texts.
        assert all([finding.cause, finding.why, finding.remedy]), finding
    return found


def keys() -> list[str]:
    """Return the keys of the findings."""
    return sorted(finding.key for finding in findings())


def only(key: str) -> Finding:
    """Return the only finding, which has this key."""
    (finding,) = findings()
    assert finding.key == key, finding
    return finding
