"""The names that the tests of django-tasks-db import, with CatmqBackend behind them."""

from __future__ import annotations

from typing import Any

from catmq_client.contrib.django_tasks import CatmqBackend, compat


class DatabaseBackend(CatmqBackend):
    """The backend under test; as there, a task has one attempt."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        options = {"MAX_ATTEMPTS": 1, "MISSING_TASK_S": 0, **params.get("OPTIONS", {})}
        super().__init__(alias, {**params, "OPTIONS": options})


__all__ = ["DatabaseBackend", "compat"]
