"""Its settings. SHOP_DATABASE as the shop takes it; CATMQ_URL and CATMQ_API_KEY name the
brokers.
"""

from __future__ import annotations

import os

from tests.acceptance.programs.shop.settings import database

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = [
    "catmq_client.contrib.django_outbox",
    "catmq_client.contrib.django_tasks",
    "tests.acceptance.programs.workshop",
]
DATABASES = {"default": database(os.environ["SHOP_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {
        "BACKEND": "catmq_client.contrib.django_tasks.CatmqBackend",
        "OPTIONS": {
            "TOPIC_PREFIX": os.environ.get("SHOP_PREFIX", "tasks."),
            "GROUP": os.environ.get("SHOP_GROUP", "tasks"),
            "SEND": os.environ.get("SHOP_SEND", "outbox"),
            "ON_TIMEOUT": "kill" if "SHOP_KILL" in os.environ else "leave",
        },
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s"}
    },
    "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["err"], "level": "INFO"},
}
