"""Its settings: BENCH_SYSTEM names the queue of tasks, BENCH_DATABASE the application's
database.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

SYSTEM = os.environ["BENCH_SYSTEM"]
APPS: dict[str, list[str]] = {
    "catmq": [
        "django_tasks",
        "catmq_client.contrib.django_outbox",
        "catmq_client.contrib.django_tasks",
    ],
    "django-tasks-db": ["django_tasks", "django_tasks_db"],
    "django-q2": ["django_q"],
    "celery": [],
}
BACKENDS = {
    "catmq": "catmq_client.contrib.django_tasks.CatmqBackend",
    "django-tasks-db": "django_tasks_db.DatabaseBackend",
}
_url = urlsplit(os.environ["BENCH_DATABASE"])

SECRET_KEY = "of a benchmark"
USE_TZ = True
INSTALLED_APPS = APPS[SYSTEM]
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": _url.path[1:],
        "HOST": _url.hostname,
        "PORT": _url.port,
        "USER": _url.username,
        "PASSWORD": _url.password,
        "CONN_MAX_AGE": 600,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {"BACKEND": BACKENDS.get(SYSTEM, "django_tasks.backends.dummy.DummyBackend")}
}
# One worker process; poll is how long it sleeps when there is nothing, its least.
Q_CLUSTER = {
    "orm": "default",
    "workers": 1,
    "save_limit": 0,
    "timeout": 600,
    "retry": 700,
    "poll": 0.2,
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"err": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["err"], "level": "WARNING"},
}
