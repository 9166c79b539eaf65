"""Its settings. SHOP_DATABASE: mysql://user:password@host:port/name, or the path of an
SQLite file.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit


def database(where: str) -> dict[str, Any]:
    """One entry of DATABASES."""
    if "://" not in where:
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": where, "OPTIONS": options}
    url = urlsplit(where)
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": url.path[1:],
        "HOST": url.hostname,
        "PORT": url.port,
        "USER": url.username,
        "PASSWORD": url.password,
        "OPTIONS": {"isolation_level": "read committed", "charset": "utf8mb4"},
    }


SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["catmq_client.contrib.django_outbox", "tests.acceptance.programs.shop"]
DATABASES = {"default": database(os.environ["SHOP_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
