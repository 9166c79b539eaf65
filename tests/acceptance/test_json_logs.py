"""CATMQ_LOG_FORMAT=json on a whole server: every line of every log is an object, and none has
a secret.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import requests

from catmq_client import Consumer, HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.support.environment import ROOT
from tests.support.server import Server
from tests.support.waiting import until

TRACE = "0af7651916cd43dd8448eb211c80319c"
BODY, PASSWORD, WRONG_KEY = "body-nobody-logs", "password-nobody-logs", "key-nobody-logs"
SETTINGS = {"CATMQ_LOG_FORMAT": "json", "CATMQ_ACCESS_LOG": "on"}


def lines(server: Server) -> list[dict[str, Any]]:
    """Return every line of the broker and the jobs, parsed."""
    entries = []
    for path in (server.data / "log/broker.log", server.data / "log/jobs.log"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            assert {"time", "level", "logger", "message"} <= entry.keys(), line
            entries.append(entry)
    return entries


def use_everything(server: Server) -> str:
    """Send requests of every kind, good and bad; return the consumer's id."""
    transport = HttpTransport(server.url, api_key=server.api_key)
    admin = Admin(transport)
    admin.create_topic("orders", queues=1)
    admin.create_group("billing")
    admin.subscribe("billing", "orders", start="earliest")
    with Producer(server.url, api_key=server.api_key) as producer:
        producer.send("orders", BODY, headers={"h": BODY})
    reader = Consumer(
        server.url,
        group="billing",
        topics=["orders"],
        api_key=server.api_key,
        consumer_timeout_ms=20_000,
    )
    with reader as consumer:
        next(iter(consumer))
        consumer_id = str(consumer._state.consumer_id)
    headers = {
        "Authorization": f"Bearer {server.api_key}",
        "X-Request-ID": "my-request",
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    }
    url = f"{server.url}/api/v1/topics/orders/messages"
    requests.get(url, {"contains": BODY}, headers=headers, timeout=60)
    bad = {"Authorization": f"Bearer {WRONG_KEY}"}
    requests.post(url, f'{{"messages": {BODY}', headers=bad, timeout=60)
    requests.post(url, f'{{"messages": {BODY}', headers=headers, timeout=60)
    session = requests.Session()
    session.get(f"{server.url}/login", timeout=60)
    form = {
        "csrfmiddlewaretoken": session.cookies["csrftoken"],
        "username": "ada",
        "password": PASSWORD,
    }
    session.post(f"{server.url}/login", form, timeout=60)
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"GET / HTTP/9.9\r\nno header\r\n\r\n")
        raw.recv(1000)
    return consumer_id


def test_every_line_is_an_object_and_none_has_a_secret(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(environ=SETTINGS)
    consumer_id = use_everything(server)
    node = subprocess.run(
        [sys.executable, "manage.py", "register_node", "n9",
         f"mysql://root:{PASSWORD}@127.0.0.1:1/x"],
        cwd=ROOT, env=server.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert node.returncode != 0
    # The jobs' process logs once a schedule has run.
    until((server.data / "log/jobs.log").read_text, limit_s=90, every_s=0.2)
    assert server.end() == 0

    entries = lines(server)
    by_path = {(e.get("method"), e.get("path")): e for e in entries}
    send = by_path["POST", "/api/v1/topics/orders/messages"]
    assert send["topic"] == "orders" and send["request_id"]
    search = by_path["GET", "/api/v1/topics/orders/messages"]
    assert search["request_id"] == "my-request" and search["trace_id"] == TRACE
    assert search["status"] == 200 and search["actor"].startswith("key ")
    pull = by_path["POST", "/api/v1/consumers/<consumer>/pull"]
    assert pull["group"] == "billing" and pull["duration_ms"] >= 0
    assert pull["consumer"] == consumer_id.partition("-")[0]
    statuses = {e["status"] for e in entries if e.get("logger") == "catmq_site.access"}
    assert {200, 400, 401} <= statuses
    assert any(entry["logger"] == "catmq_site.gunicorn" for entry in entries)
    assert any(entry["logger"] == "django-q" for entry in entries)

    everything = json.dumps(entries) + node.stderr
    secrets = [server.api_key, consumer_id, BODY, PASSWORD, WRONG_KEY]
    secrets.append(server.credentials["CATMQ_ADMIN_PASSWORD"])
    for secret in secrets:
        assert secret not in everything
