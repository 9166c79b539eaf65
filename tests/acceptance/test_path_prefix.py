"""docs/how-to/put-it-behind-a-proxy.md: a server under a path of another site, through a
proxy.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from html import unescape
from urllib.parse import urljoin, urlsplit

import pytest
import requests

from catmq_client import Consumer, HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.support.environment import ROOT
from tests.support.prefix_proxy import PrefixProxy, prefix_proxy
from tests.support.server import Server

PREFIX = "/tools/catmq"
LINK = re.compile(r'\b(?:href|src|action|hx-get)="([^"#]+)"')
MAX_PAGES = 150


def visit(proxy: PrefixProxy, name: str, password: str) -> dict[str, int]:
    """Log in and follow every link of every page; return the status of each path."""
    session = requests.Session()
    form = session.get(proxy.url, headers={"Accept": "text/html"}, timeout=60)
    assert form.url == f"{proxy.url}/login?next={PREFIX}/", form.url
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
    assert token
    sent = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
    page = session.post(
        f"{proxy.url}/login", sent, headers={"Referer": form.url}, timeout=60
    )
    assert page.url == f"{proxy.url}/", page.text
    assert {cookie.path for cookie in session.cookies} == {PREFIX}
    found: dict[str, int] = {}
    waiting = [page.url]
    while waiting and len(found) < MAX_PAGES:
        path = urlsplit(waiting.pop(0)).path
        if path in found:
            continue
        answer = session.get(
            f"{proxy.host_url}{path}", headers={"Accept": "text/html"}, timeout=60
        )
        found[path] = answer.status_code
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            waiting += [
                urljoin(answer.url, unescape(link)) for link in LINK.findall(answer.text)
            ]
    return found


@pytest.mark.parametrize(
    "removes", [True, False], ids=["proxy removes the prefix", "proxy leaves it"]
)
def test_portal_client_and_commands_work_under_a_path(
    new_server: Callable[..., Server], *, removes: bool
) -> None:
    server = new_server(environ={"CATMQ_PATH_PREFIX": PREFIX})
    with prefix_proxy(server.port, PREFIX, removes=removes) as proxy:
        admin = Admin(HttpTransport(proxy.url, api_key=server.api_key))
        admin.create_topic("orders", queues=1)
        admin.create_group("billing")
        admin.subscribe("billing", "orders", start="earliest")
        with Producer(proxy.url, api_key=server.api_key) as producer:
            producer.send("orders", json={"number": 1})
        reader = Consumer(
            proxy.url,
            group="billing",
            topics=["orders"],
            api_key=server.api_key,
            consumer_timeout_ms=20_000,
        )
        with reader as consumer:
            assert next(iter(consumer)).json() == {"number": 1}
        known = server.credentials
        statuses = visit(proxy, known["CATMQ_ADMIN_USER"], known["CATMQ_ADMIN_PASSWORD"])
        assert len(statuses) > 40
        # A page whose link lacks the words of a query may answer 400, but none is missing.
        assert {
            path: one for path, one in statuses.items() if one not in (200, 400, 405)
        } == {}
        assert requests.get(f"{proxy.url}/api/v1/docs.js", timeout=60).status_code == 200
        environ = {**os.environ, "CATMQ_URL": proxy.url, "CATMQ_API_KEY": server.api_key}
        command = [ROOT / ".venv/bin/catmq", "topic", "list"]
        shown = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=60, check=True
        )
        assert "orders" in shown.stdout
        assert proxy.outside == []
