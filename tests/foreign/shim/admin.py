"""Nothing: the admin of django-tasks-db is not under test."""

from __future__ import annotations

DBTaskResultAdmin = None
