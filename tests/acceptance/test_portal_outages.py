"""Pages of a real server while a node or the metadata database is really away: killed, or
frozen.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from tests.acceptance.scenarios.lost_nodes import node_on, own_server
from tests.acceptance.scenarios.stage import Stage
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server
from tests.support.waiting import until

QUICK_S = 10.0  # the longest that a page may take, on a machine that does other things too
BACK_S = 60.0
WITHOUT = ("/expand", "/reset", "/failures")  # forms, and a list that needs another node
WHOLE = (
    "/", "/topics", "/groups", "/subscriptions", "/consumers", "/nodes", "/brokers", "/alarms",
    "/jobs",
    "/audit", "/keys", "/users", "/settings",
)  # fmt: skip


class Person:
    """An administrator with a browser that keeps cookies."""

    def __init__(self, server: Server) -> None:
        self.url, known = server.url, server.credentials
        self.session = requests.Session()
        self.session.headers["Accept-Language"] = "en"
        token = self.token(self.session.get(f"{self.url}/login", timeout=BACK_S).text)
        form = {
            "username": known["CATMQ_ADMIN_USER"],
            "password": known["CATMQ_ADMIN_PASSWORD"],
        }
        self.session.post(
            f"{self.url}/login", {**form, "csrfmiddlewaretoken": token}, timeout=BACK_S
        )
        assert self.open("/topics")[0] == 200

    def token(self, page: str) -> str:
        """The token that every form carries."""
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert found, page
        return found[1]

    def open(self, path: str) -> tuple[int, str, float]:
        """(status, page, seconds) of an address."""
        begun = time.monotonic()
        answer = self.session.get(self.url + path, timeout=BACK_S)
        return answer.status_code, answer.text, time.monotonic() - begun

    def quick(self, path: str) -> tuple[int, str]:
        """(status, page) of an address, which must come in time and be none of an
        unexpected fault.
        """
        status, page, seconds = self.open(path)
        assert seconds <= QUICK_S, f"{path} took {seconds:.1f} s"
        assert status in (200, 503), f"{path}: {status} {page[-1500:]}"
        return status, page


@contextmanager
def gone(server: MariaDB, way: str) -> Iterator[None]:
    """The server is killed, or frozen, during the block."""
    os.kill(server.pid, signal.SIGSTOP if way == "frozen" else signal.SIGKILL)
    try:
        yield
    finally:
        if way == "frozen":
            os.kill(server.pid, signal.SIGCONT)
        else:
            server.start()


def test_every_page_says_which_node_is_away_and_shows_the_rest(
    on_pair: Stage, pair: Pair
) -> None:
    admin, ada = on_pair.terminal.admin, Person(pair.first)
    with own_server(on_pair) as server:
        node = node_on(on_pair, pair, server)
        topic, group = on_pair.fresh("orders"), on_pair.fresh("billing")
        admin.create_topic(topic, queues=2, node=node)
        admin.create_group(group)
        admin.subscribe(group, topic)
        queue = admin.queues(topic)[0]["queue"]
        until(lambda: f">{topic}/0<" in ada.open(f"/groups/{group}")[1], limit_s=BACK_S)
        # nodes of earlier tests
        until(lambda: "does not answer" not in ada.open("/")[1], limit_s=BACK_S)
        need_it = (
            f"/topics/{topic}", f"/groups/{group}", f"/nodes/{node}", f"/nodes/{node}/test",
            f"/messages?topic={topic}", f"/messages/{topic}/{queue}-0", f"/topics/{topic}/delayed",
            f"/groups/{group}/failures", f"/topics/{topic}/expand", f"/groups/{group}/reset",
        )  # fmt: skip
        for way in ("killed", "frozen"):
            with gone(server, way):
                for path in need_it:
                    status, page = ada.quick(path)
                    seen = re.sub(r"<[^>]*>|\s+", " ", page.partition("<h1")[2])[:1500]
                    assert node in page or path.endswith(WITHOUT), (
                        f"{path}: {status} {seen}"
                    )
                until(lambda: "does not answer" in ada.quick("/")[1], limit_s=BACK_S)
                assert node in ada.quick("/")[1]
                for path in WHOLE:
                    assert ada.quick(path)[0] == 200, path
                assert topic in ada.quick(f"/topics?q={topic}")[1]
            until(
                lambda: "does not answer" not in ada.quick(f"/nodes/{node}")[1],
                limit_s=BACK_S,
            )
        admin.delete_group(group)


@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_every_page_says_that_the_metadata_database_is_away_and_how_much_is_served(
    pair: Pair, way: str
) -> None:
    ada = Person(pair.first)
    with gone(pair.metadata, way):
        for path in (*WHOLE, "/nodes/n1"):
            status, page = ada.quick(path)
            assert status == 503 and "The metadata database does not answer" in page, path
            assert "Nodes that answer" in page
        assert ada.quick("/login")[0] in (200, 503)
        ready = requests.get(f"{pair.first.url}/readyz", timeout=BACK_S)
        assert ready.status_code == 200
    until(lambda: ada.open("/")[0] == 200, limit_s=BACK_S)
    until(pair.reach_metadata, limit_s=BACK_S)
