"""Pages while a node or the metadata database is away: they say so, and show what they can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import OperationalError
from django.db import connections as databases
from django.test import Client

from messagestore.engine.mysql_session import Session
from messagestore.nodes import registry
from messagestore.pool import node_pools, session_pool
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable
from metadata.groups import groups
from tests.support import failing
from tests.support.failing import ME
from tests.support.forms import browser, carry_out, confirm, fields, filled, text

pytestmark = pytest.mark.one_engine

DASHES = ("/topics/orders", "/groups/billing")  # what only the node knows is a dash there
WHOLE = (
    "/", "/topics", "/groups", "/subscriptions", "/consumers", "/rebalances", "/brokers", "/alarms",
    "/jobs", "/audit", "/nodes", "/nodes/main", "/keys", "/users", "/settings",
    "/groups/billing/moves",
    "/groups/billing/failures", "/groups/billing/settings", "/topics/orders/settings",
)  # fmt: skip
NEED_IT = (
    "/messages/orders/{queue}-0",
    "/topics/orders/delayed",
    "/messages?topic=orders&queue={queue}",
)


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of `orders`, with a message."""
    queue = failing.billing()
    failing.send(b"a")
    return queue


@pytest.fixture
def ada(queue: int) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


@pytest.fixture(params=["offline", "silent"])
def away(
    request: pytest.FixtureRequest, queue: int, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Node `main` was taken offline, or nobody can connect to it."""
    if request.param == "offline":
        registry.update(name="main", settings={"state": "offline"}, actor=ME)
        snapshot.refresh()
        return "offline"
    real = session_pool.connect

    def connect(info: NodeInfo, **words: Any) -> Session:
        if info.name == "main":
            raise NodeUnavailable("Node main cannot be reached.")
        return real(info, **words)

    node_pools.evict_all()
    monkeypatch.setattr(session_pool, "connect", connect)
    return "silent"


@pytest.fixture
def cut() -> Iterator[ExitStack]:
    """The metadata database answers no statement, from `cut.enter_context(no_metadata())`
    on.
    """
    with ExitStack() as stack:
        yield stack


def no_metadata() -> ExitStack:
    """Every statement to metadata fails as it does when the server is gone."""

    def refuse(*_given: Any) -> Any:
        raise OperationalError(2006, "Server has gone away")

    stack = ExitStack()
    for alias in databases:
        stack.enter_context(databases[alias].execute_wrapper(refuse))
    return stack


def test_pages_show_what_is_known_without_a_node(
    queue: int, ada: Client, away: str
) -> None:
    for path in (*WHOLE, *DASHES):
        answer = ada.get(path)
        assert answer.status_code == 200, (path, text(answer))
    for path in DASHES:
        assert "does not answer" in text(ada.get(path)), path


def test_pages_that_need_the_node_name_it(queue: int, ada: Client, away: str) -> None:
    for path in NEED_IT:
        answer = ada.get(path.format(queue=queue))
        assert answer.status_code in (200, 503) and "Node main" in text(answer), (
            path,
            text(answer),
        )


def test_the_first_page_names_a_node_that_is_offline_or_did_not_answer_its_last_probe(
    queue: int, ada: Client, away: str
) -> None:
    registry.probe()
    page = text(ada.get("/"))
    assert "Node main" in page and "Everything is in order" not in page and "1 / 2" in page
    assert ("offline" if away == "offline" else "does not answer") in text(
        ada.get("/nodes")
    )


def test_an_action_that_needs_the_node_is_refused_with_its_name(
    queue: int, ada: Client, away: str
) -> None:
    answer = filled(ada, "/groups/billing/reset", topic="orders", to="latest")
    assert answer.status_code == 503 and "main" in text(answer)
    assert "is paused" in text(carry_out(ada, "/groups/billing/stop"))  # needs none


def test_without_metadata_every_page_says_so_and_what_still_works(
    queue: int, ada: Client, cut: ExitStack
) -> None:
    seen = filled(ada, "/groups/billing/stop")
    typed = {"username": "ada", "password": "enough characters"}
    cut.enter_context(no_metadata())
    for path in (*WHOLE, *DASHES, "/login"):
        answer = ada.get(path)
        if path != "/login" or answer.status_code != 200:
            assert answer.status_code == 503 and "does not answer" in text(answer), path
    assert Client().get("/login").status_code == 200
    assert "does not answer" in text(Client().post("/login", typed))
    assert ada.post("/groups/billing/stop", fields(seen)).status_code == 503
    cut.close()
    assert not groups.describe(name="billing", actor=ME).stopped
    assert "is paused" in text(confirm(ada, "/groups/billing/stop", seen))


def test_the_page_without_metadata_names_nothing_that_is_a_secret(
    queue: int, ada: Client, cut: ExitStack
) -> None:
    cut.enter_context(no_metadata())
    page = text(ada.get("/topics/orders"))
    assert "Topics served" in page and "orders" not in page.replace(
        'href="/topics/orders"', ""
    )
    # a stranger goes to the login, as always
    assert Client().get("/topics/orders").status_code == 302
