"""docs/how-to/use-it-with-asyncio.md and examples/fastapi do what they say.

FastAPI and uvicorn are installed in pinned versions into a virtualenv of their own.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import documents, venvs
from tests.support.environment import ROOT, free_port
from tests.support.server import Server, clean_environment
from tests.support.waiting import until

PAGE = (ROOT / "docs/how-to/use-it-with-asyncio.md").read_text()
DJANGO_PAGE = (ROOT / "docs/how-to/use-it-from-django.md").read_text()
README = (ROOT / "examples/fastapi/README.md").read_text()
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
LIMIT_S = 120
# uvicorn repeats the signal when it has shut down.
TERMINATED = (0, -signal.SIGTERM)
SETTINGS = """
ALLOWED_HOSTS = ["*"]
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
MIDDLEWARE.remove("django.middleware.csrf.CsrfViewMiddleware")
"""
URLS = """from django.urls import path

from orders import views

urlpatterns = [path("views/<customer>", views.view), path("orders/<customer>", views.order)]
"""
IN_A_COROUTINE = """
import asyncio
import django
django.setup()
from catmq_client.contrib.django_outbox import outbox
from django.db import transaction


async def send():
    outbox.send("orders", b"17")


async def begin():
    with transaction.atomic():
        outbox.send("orders", b"17")


for function in (send, begin):
    try:
        asyncio.run(function())
    except Exception as error:
        print(type(error).__name__, error)
"""


@dataclass
class Directory:
    """A directory in which a reader follows the page, with the programs that run there."""

    path: Path
    python: str
    server: Server
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {
            **clean_environment(),
            "CATMQ_URL": self.server.url,
            "CATMQ_API_KEY": self.server.api_key,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": f"{ROOT / 'client/src'}",
            "PYTHONUNBUFFERED": "1",
        }

    def write_files(self, page: str) -> None:
        """Write the blocks whose first line names a file."""
        for block in documents.blocks(page):
            name = documents.FILE.match(block)
            if block.kind == "python" and name:
                file = self.path / name[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a") as opened:
                    opened.write(block)

    def run(self, *argv: str) -> str:
        """Run a Python program that must succeed. Return its output."""
        process = subprocess.run(
            [self.python, *argv],
            cwd=self.path,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert process.returncode == 0, process.stdout
        return process.stdout

    def catmq(self, *argv: str) -> str:
        return self.run("-m", "catmq_client", *argv)

    def start(self, *argv: str, **environ: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a program that has no end. Return it with the file of its output."""
        log = self.path / f"{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.python, *argv],
                cwd=self.path,
                env=self.environ | environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process, log

    def serve(self, application: str) -> tuple[int, subprocess.Popen[bytes], Path]:
        """Start uvicorn on a free port. Return the port when it serves requests."""
        port = free_port()
        process, log = self.start("-m", "uvicorn", application, "--port", str(port))
        until(
            lambda: "running on" in log.read_text() or process.poll() is not None,
            limit_s=LIMIT_S,
        )
        assert process.poll() is None, log.read_text()
        return port, process, log

    def end(self, process: subprocess.Popen[bytes], log: Path) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) in TERMINATED, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()

    def run_until(self, text: str, count: int, *argv: str) -> str:
        """Run a program that has no end until it has printed a text so often. Return its
        output.
        """
        process, log = self.start(*argv)
        until(
            lambda: log.read_text().count(text) >= count or process.poll() is not None,
            limit_s=LIMIT_S,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0, log.read_text()
        return log.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for each test: they all use the page's names for topics and groups."""
    server = Server(tmp_path / "server")
    try:
        yield server.start()
    finally:
        server.clear_away()


@pytest.fixture
def directory(server: Server, tmp_path: Path) -> Iterator[Directory]:
    (tmp_path / "app").mkdir()
    directory = Directory(tmp_path / "app", venvs.python_with(REQUIREMENTS), server)
    yield directory
    for process in directory.started:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def ask(port: int, path: str, body: dict[str, str] | None = None) -> Any:
    """POST a request, and return the decoded answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode() if body else b"",
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


def test_the_programs_of_the_page_run(directory: Directory) -> None:
    directory.write_files(PAGE)
    directory.catmq("topic", "create", "orders", "--queues", "4")
    sent = directory.run("send.py")
    assert "stored: " in sent and "3 sent, 0 errors" in sent
    assert directory.run("impatient.py") == "stored, or not\n"
    assert "billed: {'item': 'tea'}" in directory.run_until("billed: ", 14, "consume.py")
    # A send that was cancelled may be stored, so there are 14 messages or 15.
    assert len(directory.run("iterate.py").splitlines()) in (14, 15)
    assert "billed: " in directory.run_until("billed: ", 14, "worker.py")
    tested = directory.run(
        "-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider", "test_billing.py"
    )
    assert "1 passed" in tested
    port, process, log = directory.serve("app:app")
    assert "message_id" in ask(port, "/orders/carol?item=rice")
    until(lambda: "billed: {'item': 'rice'}" in log.read_text(), limit_s=LIMIT_S)
    directory.end(process, log)


def test_the_django_project_of_the_page_runs(directory: Directory) -> None:
    directory.run("-m", "django", "startproject", "shop", ".")
    directory.run("manage.py", "startapp", "orders")
    with (directory.path / "shop/settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (directory.path / "shop/urls.py").write_text(URLS)
    for file in ("models.py", "views.py"):
        (directory.path / "orders" / file).unlink()
    directory.write_files(DJANGO_PAGE)
    directory.write_files(PAGE)
    directory.run("manage.py", "makemigrations", "orders")
    directory.run("manage.py", "migrate", "-v", "0")
    for topic in ("orders", "views"):
        directory.catmq("topic", "create", topic, "--queues", "2")
    port, process, log = directory.serve("shop.asgi:application")
    assert "message_id" in ask(port, "/views/alice")
    order = ask(port, "/orders/alice")["order"]
    assert "sent 1, refused 0, left 0" in directory.run(
        "manage.py", "relay_outbox", "--once"
    )
    directory.end(process, log)
    assert f'{{"id":{order}}}' in directory.catmq("peek", "orders", "--output", "body")

    process, log = directory.start("manage.py", "bill_orders")
    count = "from orders.models import Invoice; print(Invoice.objects.count())"
    until(
        lambda: (
            directory.run("manage.py", "shell", "-v", "0", "-c", count).strip() == "1"
            or process.poll() is not None
        ),
        limit_s=LIMIT_S,
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0, log.read_text()

    errors = directory.run("-c", IN_A_COROUTINE).splitlines()
    assert errors[0].startswith("OutsideTransaction ") and "sync_to_async" in errors[0]
    assert errors[1].startswith("SynchronousOnlyOperation ")


def test_the_example_runs_and_ends_with_its_consumer(directory: Directory) -> None:
    shutil.copy(ROOT / "examples/fastapi/app.py", directory.path)
    directory.catmq("topic", "create", "orders", "--queues", "4")
    port, process, log = directory.serve("app:app")
    body = re.search(r"--json '(.*?)'", README)
    assert body
    answer = ask(port, "/orders", json.loads(body[1]))
    until(lambda: f"{answer['message_id']}: tea for alice" in log.read_text(), limit_s=60)
    with pytest.raises(urllib.error.HTTPError, match="422"):
        ask(port, "/orders", {"customer": "alice"})
    directory.end(process, log)
    assert "billing" in directory.catmq("lag", "billing")

    process, log = directory.start(
        "-m", "uvicorn", "app:app", "--port", str(free_port()), CATMQ_API_KEY="catmq_wrong"
    )
    assert process.wait(LIMIT_S) in TERMINATED
    assert "the consumer has ended: Unknown API key" in log.read_text()


def test_every_program_of_the_page_is_run() -> None:
    """Guards the tests above: a new block of the page needs a line in them."""
    names = [
        name[1]
        for block in documents.blocks(PAGE)
        if block.kind == "python" and (name := documents.FILE.match(block))
    ]
    code = Path(__file__).read_text()
    known = {"app.py": "app:app", "orders/views.py": "/views/alice"}
    known["orders/management/commands/bill_orders.py"] = "bill_orders"
    assert [name for name in names if known.get(name, name) not in code] == []
    python = [block for block in documents.blocks(PAGE) if block.kind == "python"]
    assert len(names) == len(python) == 9
