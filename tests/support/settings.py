"""Settings of test sessions: the server's, with outbox and tasks as an application installs
them.
"""

from __future__ import annotations

import django

from catmq_site.settings import *  # noqa: F403
from catmq_site.settings import INSTALLED_APPS as _SERVER

INSTALLED_APPS = [
    *_SERVER,
    *(("django_tasks",) if django.VERSION < (6, 0) else ()),  # part of Django since 6.0
    "catmq_client.contrib.django_outbox",
    "catmq_client.contrib.django_tasks",
]
TASKS = {
    "default": {
        "BACKEND": "catmq_client.contrib.django_tasks.CatmqBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"MISSING_TASK_S": 5},
    }
}
# The production hasher is slow by design and takes half a second for each login.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
