"""A whole server and a browser; what is needed is made through client and pages, never
through the ORM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from catmq_client import HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.browser.browsing import chromium, log_in, tab
from tests.support.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The session's server, on the embedded engine."""
    made = Server(tmp_path_factory.mktemp("browser") / "data")
    try:
        yield made.start()
    finally:
        made.clear_away()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The session's Chromium."""
    with chromium() as made:
        yield made


@pytest.fixture
def admin(server: Server) -> Admin:
    """The management calls of the client."""
    return Admin(HttpTransport(server.url, api_key=server.api_key))


@pytest.fixture
def producer(server: Server) -> Iterator[Producer]:
    """A producer of the client."""
    with Producer(server.url, api_key=server.api_key) as made:
        yield made


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """An administrator's page, in English."""
    with tab(browser, server.url) as made:
        enter(made, server)
        yield made


@pytest.fixture
def data() -> Path:
    """The real input."""
    return Path(__file__).parents[2] / "examples/data/nats-server-file-changes.jsonl.gz"


def enter(page: Page, server: Server) -> None:
    """Logs the administrator in."""
    known = server.credentials
    log_in(page, known["CATMQ_ADMIN_USER"], known["CATMQ_ADMIN_PASSWORD"])
