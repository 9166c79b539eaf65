"""A project on SQLite, or on the MariaDB of SHOP_DATABASE, a URL."""

from __future__ import annotations

import os
from importlib.util import find_spec

from tests.acceptance.programs.shop.settings import database

SECRET_KEY = "of a test"
USE_TZ = True
WHERE = os.environ["SHOP_DATABASE"]
DATABASES = {
    "default": {
        **database(WHERE),
        "TEST": {"NAME": "catmq_foreign" if "://" in WHERE else "test.db"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# A proxy in an app without migrations needs its base without.
MIGRATION_MODULES = {"catmq_outbox": None, "catmq_tasks": None}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    *([] if find_spec("django.tasks") else ["django_tasks"]),
    "catmq_client.contrib.django_outbox",
    "catmq_client.contrib.django_tasks",
    "tests.foreign.shim",
]
PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
TASKS = {
    "default": {
        "BACKEND": "tests.foreign.shim.DatabaseBackend",
        "QUEUES": ["default", "queue-1"],
    },
    "dummy": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"},
}
