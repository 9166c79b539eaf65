"""The settings of test sessions: the server's, and the outbox, as an application would install it."""

from __future__ import annotations

from catmq_site.settings import *  # noqa: F403
from catmq_site.settings import INSTALLED_APPS as _SERVER

INSTALLED_APPS = [*_SERVER, "catmq_client.contrib.django_outbox"]
# One that is meant to be slow takes half a second for each login.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
