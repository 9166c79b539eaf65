"""Settings of the Django project. WEB_DATABASE is the path of an SQLite file."""

from __future__ import annotations

import os

SECRET_KEY = "of a test"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.acceptance.programs.web.views"
INSTALLED_APPS = ["catmq_client.contrib.django_outbox", "tests.acceptance.programs.web"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["WEB_DATABASE"],
        # Readers do not wait for the writer, and a commit waits for no disk: a kill of a
        # process loses nothing either way.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 60,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
