"""The outbox in projects as `django-admin startproject` makes them: DEBUG is on, and what
else people set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.environment import ROOT

# What an application does with the outbox: send, relay, look after what was refused, handle
# once.
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
assert claims.count_rows() == (0, 0, 1, 0), claims.count_rows()
[failed] = claims.list_failed()
assert failed.topic == "nowhere"
assert claims.discard([failed.id]) == 1
first.release()
assert second.acquire() == ""

handled = []
with Consumer(
    group="g", topics=["orders"], auto_offset_reset="earliest", transport=broker,
    consumer_timeout_ms=3000
) as consumer:
    message = next(iter(consumer))
    for _ in range(2):
        inbox.handled_once(scope="g")(handled.append)(message)
assert handled == [message]
assert inbox.prune() == 0
print(alias, settings.DEBUG,
any("catmq_outbox" in query["sql"] for query in connections[alias].queries))
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
    "in other time zones": "TIME_ZONE = 'Asia/Tokyo'\nDATABASES['default']['TIME_ZONE'] = "
    "'Europe/Oslo'",
    "with requests in transactions": "DATABASES['default']['ATOMIC_REQUESTS'] = True\n",
    "with lasting connections": "DATABASES['default'] |= "
    "{'CONN_HEALTH_CHECKS': True, 'CONN_MAX_AGE': None}",
    "with a router": ROUTER,
}


# What people type one after the other, in one process: to load Django each time takes
# longer than its work.
COMMANDS = """
import sys
from django.core.management import execute_from_command_line
for line in {lines!r}:
    print("--")
    execute_from_command_line(["manage.py", *line])
    sys.stdout.flush()
"""


class Project:
    """A project of its own, a copy of `made`."""

    def __init__(self, made: Path, directory: Path, settings: str) -> None:
        self.directory = directory
        shutil.copytree(made, directory)
        with (directory / "shop/settings.py").open("a") as file:
            file.write(
                'INSTALLED_APPS += ["catmq_client.contrib.django_outbox"]\n' + settings
            )

    def manage(self, *lines: Sequence[str]) -> list[str]:
        """Return what manage.py prints for each of some lines of words."""
        program = COMMANDS.format(lines=lines)
        said = python(
            "-c", program, cwd=self.directory, DJANGO_SETTINGS_MODULE="shop.settings"
        )
        return [part.strip() for part in said.split("--\n")[1:]]


def python(*words: str, cwd: Path, **more: str) -> str:
    """Return what a process of its own prints; any warning ends it."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "TMPDIR", "LANG")
        if name in os.environ
    }
    environ = {
        **kept,
        "PYTHONPATH": str(ROOT / "client/src"),
        "PYTHONWARNINGS": "error",
        **more,
    }
    command = [sys.executable, *words]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as `django-admin startproject` makes it."""
    directory = tmp_path_factory.mktemp("project")
    python("-m", "django", "startproject", "shop", str(directory), cwd=directory)
    return directory


@pytest.fixture
def databases(
    request: pytest.FixtureRequest, engine: str, tmp_path: Path
) -> Callable[[], str]:
    """The settings of the project's databases: its own files, or two schemas of the server
    under test.
    """
    if engine == "sqlite":
        return lambda: f"OTHER = {{'NAME': {str(tmp_path / 'messages.sqlite3')!r}}}\n"
    server = request.getfixturevalue("mariadb")
    names = []
    for _ in range(2):
        schema = server.schema()
        names.append(schema.__enter__())
        request.addfinalizer(lambda one=schema: one.__exit__(None, None, None))
    given = {
        "USER": "catmq",
        "PASSWORD": server.password,
        "HOST": "127.0.0.1",
        "PORT": server.port,
    }
    default = {"ENGINE": "django.db.backends.mysql", "NAME": names[0], **given}
    return lambda: (
        f"DATABASES = {{'default': {default!r}}}\nOTHER = {{'NAME': {names[1]!r}}}\n"
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_the_outbox_works_in_a_project_with_debug_on(
    choice: str, made: Path, databases: Callable[[], str], tmp_path: Path
) -> None:
    project = Project(made, tmp_path / "project", databases() + CHOICES[choice])
    alias = "messages" if choice == "with a router" else "default"
    migrated, said, status = project.manage(
        ("migrate", "--verbosity", "0", "--database", alias),
        ("shell", "--no-imports", "--command", PROGRAM),
        ("relay_outbox", "--status"),
    )
    assert (migrated, said.split()) == ("", [alias, "True", "True"])
    assert status.startswith("waiting 0, being sent 0, refused 0")
