"""Chooses the database alias that a model uses."""

from __future__ import annotations

from typing import Any

from django.conf import settings

JOBS_APP = "django_q"


class Router:
    """Uses `jobs` for django-q's tables and `default` for all others.

    On MySQL/MariaDB both aliases are the same database, and django-q's tables are migrated
    through `default`: both aliases share one django_migrations table, in which the first
    alias to migrate marks everything as done.
    """

    def db_for_read(self, model: Any, **hints: object) -> str | None:
        """Return `jobs` for django-q's models, None for others."""
        return "jobs" if model._meta.app_label == JOBS_APP else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        if db == "snapshot":
            return False
        has_own_file = settings.DATABASES["jobs"]["ENGINE"] == "django.db.backends.sqlite3"
        return db == ("jobs" if has_own_file and app_label == JOBS_APP else "default")
