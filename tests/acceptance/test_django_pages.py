"""The pages about Django projects do what they say: their blocks make a project, whose
commands run.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import django
import pytest

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.errors import Conflict
from tests.support import documents
from tests.support.environment import ROOT
from tests.support.server import Server, clean_environment
from tests.support.waiting import until

# pip has run, and services are for systemd.
LEFT_OUT = re.compile(r"^(pip install|sudo systemctl) .*$", re.MULTILINE)
ENDLESS = re.compile(
    r"^python manage\.py (?:consume_orders|relay_outbox(?! +--)|catmq_worker)", re.MULTILINE
)
SETUP = "import django\ndjango.setup()\n"
# as the pages advise
OPTIONS = 'DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}\n'


@dataclass
class Project:
    """A new Django project with an app `orders`, and a page whose blocks have not run yet."""

    path: Path
    server: Server
    page: str
    blocks: list[documents.Block]

    def begin(self, models: str = "") -> None:
        """Make the project, the models of its app, and what the settings need on SQLite."""
        self.sh("django-admin startproject shop .\npython manage.py startapp orders")
        self.add(
            "shop/settings.py",
            OPTIONS + ('INSTALLED_APPS += ["orders"]\n' if models else ""),
        )
        if models:
            self.add("orders/models.py", models)
            self.sh("python manage.py makemigrations orders")

    def add(self, file: str, text: str) -> None:
        """Add text at the end of a file."""
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as opened:
            opened.write(text)

    def block(self, kind: str, *, names: str = "") -> str:
        """Run the next block, which is of this kind; its output. `names`: code that defines
        its names.
        """
        block = self.blocks.pop(0)
        assert block.kind == kind, f"line {block.line}: {block}"
        text = str(block)
        if kind == "sh":
            return self.sh(text)
        named = re.match(r"# ([\w/]+\.py)\n", text)
        if named:
            self.add(named[1], self.here(text))
            return ""
        return self.python(names + text)

    def here(self, text: str) -> str:
        """Code of a page with this broker, this key and this Django."""
        ours = text.replace("http://broker-1:8000", self.server.url).replace(
            '"http://broker-2:8000"', f'"{self.server.url}"'
        )
        before_6 = django.VERSION < (6,)
        ours = (
            ours.replace("from django.tasks import", "from django_tasks import")
            if before_6
            else ours
        )
        return ours.replace("catmq_…", self.server.api_key)

    def environment(self) -> dict[str, str]:
        """What a user of the project has set."""
        environ = clean_environment()
        ours = str(Path(sys.executable).parent)
        return environ | {
            "CATMQ_URL": self.server.url,
            "CATMQ_API_KEY": self.server.api_key,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PATH": f"{ours}{os.pathsep}{environ['PATH']}",
            "PYTHONPATH": str(ROOT / "client/src"),
        }

    def sh(self, text: str) -> str:
        """Run a shell block without what has no end; its output."""
        kept = LEFT_OUT.sub("", text)
        kept = "\n".join(line for line in kept.splitlines() if not ENDLESS.match(line))
        return self.ran("bash", "-euc", kept)

    def python(self, text: str) -> str:
        """Run code in the project; its output."""
        return self.ran(sys.executable, "-c", SETUP + text)

    def ran(self, *command: str) -> str:
        """The output of a command, which succeeds."""
        done = subprocess.run(
            command, cwd=self.path, env=self.environment(), timeout=120, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{command}: exit code {done.returncode}\n{done.stdout}"
        )
        return done.stdout

    def until(self, done: Callable[[], bool], command: str) -> None:
        """Run what has no end until it is done; SIGTERM ends it with exit code 0."""
        assert command in self.page
        words = command.replace("python", sys.executable, 1).split()
        log = self.path / "endless.log"
        with log.open("w") as opened:
            process = subprocess.Popen(
                words,
                cwd=self.path,
                env=self.environment(),
                stdout=opened,
                stderr=subprocess.STDOUT,
            )
        try:
            until(lambda: done() or process.poll() is not None, limit_s=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, log.read_text()
        finally:
            with suppress(ProcessLookupError):
                process.kill()

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """What is in the project's database."""
        with closing(sqlite3.connect(self.path / "db.sqlite3", timeout=30)) as database:
            return database.execute(statement).fetchall()

    def count(self, table: str) -> object:
        """The number of a table's rows."""
        return self.rows(f"SELECT COUNT(*) FROM {table}")[0][0]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own for the names of the pages."""
    made = Server(tmp_path_factory.mktemp("pages") / "var")
    try:
        yield made.start()
    finally:
        made.clear_away()


@pytest.fixture
def project(shop: Server, tmp_path: Path) -> Callable[[str], Project]:
    """A function that takes a page of docs/how-to to a project for it."""

    def made(page: str) -> Project:
        text = (ROOT / "docs/how-to" / page).read_text()
        return Project(tmp_path, shop, text, documents.blocks(text))

    return made


def test_use_it_from_django(project: Callable[[str], Project]) -> None:
    ours = project("use-it-from-django.md")
    ours.begin()
    settings, made, models, billing, command, run, tests, tested, services = ours.blocks
    for block in (settings, models, billing, command, tests):
        ours.add(block.split()[1], ours.here(block))
    ours.sh(made)
    ours.python("from orders.models import place_order\nplace_order('alice', 17)")
    assert "sent 1, refused 0, left 0" in ours.sh(run)
    ours.until(lambda: ours.count("orders_invoice") == 1, "python manage.py consume_orders")
    assert "Ran 2 tests" in ours.sh(tested)
    assert ours.sh(services) == "", "nothing but systemd's commands"


CUSTOMERS = """from django.contrib.auth.models import User

class Order(models.Model):
    customer = models.ForeignKey(User, on_delete=models.CASCADE)
    total = models.IntegerField()

class Invoice(models.Model):
    order_id = models.IntegerField()
"""
CUSTOMER = """from django.contrib.auth.models import User
from orders.models import Order
customer, _ = User.objects.get_or_create(username="ada")
total = 17
"""
RECEIVED = """from catmq_client import Consumer, Producer
from catmq_client.testing import FakeBroker
from orders.models import Invoice
broker = FakeBroker()
broker.create_topic("orders")
broker.subscribe("billing", "orders")
with Producer(transport=broker) as producer:
    producer.send("orders", json={"id": 7})
"""
RUNS = """
class consumer:
    def run(handle):
        for message in Consumer(transport=broker, group="billing",
        topics=["orders"]).poll(timeout_s=5) * 2:
            handle(message)
"""
ONE = """
(message,) = Consumer(transport=broker, group="billing", topics=["orders"]).poll(timeout_s=5)
"""


def test_send_in_a_transaction(project: Callable[[str], Project], shop: Server) -> None:
    ours = project("send-in-a-transaction.md")
    ours.begin(CUSTOMERS)
    with suppress(Conflict):
        Admin(HttpTransport(shop.url, api_key=shop.api_key)).create_topic(
            "orders", queues=1
        )
    ours.block("sh")
    ours.block("python")
    ours.block("sh")
    sending = ours.blocks[0]
    ours.block("python", names=CUSTOMER)
    assert ours.count("catmq_outbox_outboxmessage") == ours.count("orders_order") == 1
    ours.until(
        lambda: ours.count("catmq_outbox_outboxmessage") == 0,
        "python manage.py relay_outbox",
    )
    ours.block("sh")
    ours.block("sh")
    ours.python(CUSTOMER + sending.replace('"orders"', '"missing"'))
    assert "refused 1" in ours.sh("python manage.py relay_outbox --once || test $? = 1")
    failed, retry, discard = ours.blocks.pop(0).splitlines()
    assert "missing" in ours.sh(failed)
    assert ours.sh(retry) == "1 messages go again\n"
    assert "refused 1" in ours.sh("python manage.py relay_outbox --once || test $? = 1")
    ((refused,),) = ours.rows("SELECT id FROM catmq_outbox_outboxmessage")
    assert ours.sh(discard.replace("17", str(refused))) == "1 messages deleted\n"
    ours.block("python", names=RECEIVED + RUNS)
    ours.block("python", names=RECEIVED + ONE)
    assert ours.count("orders_invoice") == 1
    assert ours.blocks == []


RECEIPTS = """from django.core import mail

class Order(models.Model):
    customer = models.CharField(max_length=50)
    sent = models.BooleanField(default=False)

    def send_receipt(self):
        if self.customer == "nobody":
            raise ValueError("no address")
        mail.send_mail("Receipt", str(self.pk), None, [f"{self.customer}@example.org"])
        self.sent = True
        self.save()
"""
SCHEDULED = """
@task
def clean_up():
    pass

@task
def pulse(deep):
    pass
"""
SENT = "SELECT COUNT(*) FROM orders_order WHERE sent"
FAILED = "SELECT id FROM catmq_task WHERE status = 'FAILED'"
NAMES = "from orders.models import Order\nfrom orders.tasks import send_receipt\n"
SENDS = """send_receipt.using(max_attempts=1).enqueue(Order.objects.create(customer="nobody").id)
orders = [Order.objects.create(customer="bob") for _ in range(3)]
"""


def test_run_django_tasks(project: Callable[[str], Project]) -> None:
    ours = project("run-django-tasks.md")
    ours.begin(RECEIPTS)
    ours.add(
        "shop/settings.py",
        'EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"\n',
    )
    ours.block("sh")
    ours.block("python")
    ours.block("sh")
    ours.block("python")
    ours.add("orders/tasks.py", SCHEDULED)
    ours.block("python")
    ours.python("from orders.services import place_order\nplace_order('alice')")
    ours.block("sh")
    ours.block("python", names=NAMES + SENDS)
    ours.block("python")
    worker = "python manage.py catmq_worker --threads 8"
    ours.until(lambda: ours.rows(SENT) == [(4,)] and len(ours.rows(FAILED)) == 1, worker)
    ((failed,),) = ours.rows(FAILED)
    status, retry, discard = ours.blocks.pop(0).splitlines()
    ident = str(failed).replace("-", "")
    assert "mails  FAILED  1" in ours.sh(status)
    assert "1 tasks get one more attempt" in ours.sh(re.sub(r"[0-9a-f]{32}", ident, retry))
    ours.until(lambda: len(ours.rows(FAILED)) == 1, worker)
    assert "1 tasks are discarded" in ours.sh(re.sub(r"[0-9a-f]{32}", ident, discard))
    # SQLite knows none of these options
    ours.block("python", names='DATABASES = {"default": {}}\n')
    ours.block("python")
    assert "Ran 1 test" in ours.sh("python manage.py test orders")
    assert ours.blocks == []
