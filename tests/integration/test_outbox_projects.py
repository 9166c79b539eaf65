"""The outbox in projects as `django-admin startproject` makes them: DEBUG is on, and what else people set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.environment import ROOT

# What an application does with the outbox: send, relay, look after what was refused, handle once.
PROGRAM = """
import sys
from django.conf import settings
from django.db import connections, router, transaction
from catmq_client import Consumer
from catmq_client.contrib.django_outbox import claims, inbox, outbox
from catmq_client.contrib.django_outbox.claims import Claims
from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_outbox.relay import Relay
from catmq_client.testing import FakeBroker

alias = router.db_for_write(OutboxMessage)
broker = FakeBroker()
broker.create_topic("orders", queues=2)
with transaction.atomic(using=alias):
    outbox.send("orders", json={"id": 1}, key="customer-7, 100 %s")
    outbox.send("nowhere", "refused")
first, second = Claims("first"), Claims("second")
assert first.acquire() == "" and second.acquire() == "first"
relay = Relay(broker, first)
while relay.run_once().advanced:
    pass
assert claims.counts() == (0, 0, 1, 0), claims.counts()
[failed] = claims.failed()
assert failed.topic == "nowhere"
assert claims.discard([failed.id]) == 1
first.release()
assert second.acquire() == ""

handled = []
with Consumer(
    group="g", topics=["orders"], auto_offset_reset="earliest", transport=broker, consumer_timeout_ms=3000
) as consumer:
    message = next(iter(consumer))
    for _ in range(2):
        inbox.handled_once(scope="g")(handled.append)(message)
assert handled == [message]
assert inbox.trim() == 0
print(alias, settings.DEBUG, any("catmq_outbox" in query["sql"] for query in connections[alias].queries))
"""

ROUTER = """
class Router:
    def db_for_read(self, model, **hints):
        return "messages" if model._meta.app_label == "catmq_outbox" else None

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return (db == "messages") == (app_label == "catmq_outbox")


DATABASES["messages"] = {**DATABASES["default"], **OTHER}
DATABASE_ROUTERS = [__name__ + ".Router"]
"""

CHOICES = {
    "as it is made": "",
    "without time zones": "USE_TZ = False\nTIME_ZONE = 'Asia/Shanghai'\n",
    "in other time zones": "TIME_ZONE = 'Asia/Tokyo'\nDATABASES['default']['TIME_ZONE'] = 'Europe/Oslo'",
    "with requests in transactions": "DATABASES['default']['ATOMIC_REQUESTS'] = True\n",
    "with lasting connections": "DATABASES['default'] |= {'CONN_HEALTH_CHECKS': True, 'CONN_MAX_AGE': None}",
    "with a router": ROUTER,
}


class Project:
    """A project of its own; `run` is its manage.py."""

    def __init__(self, directory: Path, settings: str) -> None:
        self.directory = directory
        self._python("-m", "django", "startproject", "shop", str(directory), cwd=directory)
        with (directory / "shop/settings.py").open("a") as file:
            file.write('INSTALLED_APPS += ["catmq_client.contrib.django_outbox"]\n' + settings)

    def manage(self, *words: str) -> str:
        """Return what manage.py prints."""
        return self._python("manage.py", *words, cwd=self.directory)

    def _python(self, *words: str, cwd: Path) -> str:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        environ = {**kept, "PYTHONPATH": str(ROOT / "client/src"), "PYTHONWARNINGS": "error"}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def databases(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Callable[[], str]:
    """The settings of the project's databases: its own files, or two schemas of the server under test."""
    if engine == "sqlite":
        return lambda: f"OTHER = {{'NAME': {str(tmp_path / 'messages.sqlite3')!r}}}\n"
    server = request.getfixturevalue("mariadb")
    names = []
    for _ in range(2):
        schema = server.schema()
        names.append(schema.__enter__())
        request.addfinalizer(lambda one=schema: one.__exit__(None, None, None))
    given = {"USER": "catmq", "PASSWORD": server.password, "HOST": "127.0.0.1", "PORT": server.port}
    default = {"ENGINE": "django.db.backends.mysql", "NAME": names[0], **given}
    return lambda: f"DATABASES = {{'default': {default!r}}}\nOTHER = {{'NAME': {names[1]!r}}}\n"


@pytest.mark.parametrize("choice", CHOICES)
def test_the_outbox_works_in_a_project_with_debug_on(
    choice: str, databases: Callable[[], str], tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    project = Project(tmp_path / "project", databases() + CHOICES[choice])
    alias = "messages" if choice == "with a router" else "default"
    project.manage("migrate", "--verbosity", "0", "--database", alias)
    assert project.manage("shell", "--no-imports", "--command", PROGRAM).split() == [alias, "True", "True"]
    assert project.manage("relay_outbox", "--status").startswith("waiting 0, being sent 0, refused 0")
