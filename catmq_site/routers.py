"""Choice of the database alias that a model uses."""

from __future__ import annotations

from typing import Any

from django.conf import settings

JOBS_APP = "django_q"


class Router:
    """django-q's tables are reached through `jobs`, everything else through `default`.

    On MySQL/MariaDB `jobs` is the same database as `default`. There its tables are migrated
    through
    `default`: both aliases share one django_migrations table, in which the first to come
    marks all as done.
    """

    def db_for_read(self, model: Any, **hints: object) -> str | None:
        """`jobs` for django-q's models, no opinion on others."""
        return "jobs" if model._meta.app_label == JOBS_APP else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        if db == "snapshot":
            return False
        apart = settings.DATABASES["jobs"]["ENGINE"] == "django.db.backends.sqlite3"
        return db == ("jobs" if apart and app_label == JOBS_APP else "default")
