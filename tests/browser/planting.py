"""A server with something on every page, for screenshots: the groups of the demo, and what
people do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.browsing import fill, log_in, tab
from tests.support.environment import ROOT
from tests.support.server import Server

DEMO_S = 75  # until a job has seen the lag, and messages have died
REDRIVE_S = 20  # until these are redriven, and others have died
DONE_BY_HAND: tuple[tuple[str, dict[str, str]], ...] = (
    ("/create/user", {"name": "uma", "password": "enough characters"}),
    ("/create/key", {"name": "shop", "produce": "repo.*"}),
    ("/create/report", {"name": "volume", "engine": "direct"}),
    ("/groups/archive/reset", {"to": "latest"}),
    ("/groups/mailer/dead/redrive", {"error": "LookupError", "rate": "1"}),
)


@contextmanager
def planted(browser: Browser) -> Iterator[Path]:
    """The data directory of a server that runs until the block is left."""
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(place) / "data")
        try:
            server.start()
            with _demo(server):
                time.sleep(DEMO_S)
                _by_hand(server, browser)
                time.sleep(REDRIVE_S)
                yield server.data
        finally:
            server.clear_away()


@contextmanager
def _demo(server: Server) -> Iterator[None]:
    """Messages that come and are read, until the block is left."""
    code = [sys.executable, "-P", str(ROOT / "examples/demo.py"), "--rate", "40"]
    environ = {**server.environment(), "PYTHONPATH": str(ROOT / "client/src")}
    sending = subprocess.Popen(
        [*code, "--data", str(server.data)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        sending.terminate()
        sending.wait()


def _by_hand(server: Server, browser: Browser) -> None:
    known = server.credentials
    with tab(browser, server.url) as page:
        log_in(page, known["CATMQ_ADMIN_USER"], known["CATMQ_ADMIN_PASSWORD"])
        for path, fields in DONE_BY_HAND:
            fill(page, path, **fields)
            page.click("[data-confirm]")
            page.wait_for_load_state("load")
