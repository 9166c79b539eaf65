"""CatmqBackend in the place of Django's DummyBackend: it keeps what was enqueued."""

from __future__ import annotations

from typing import Any

from catmq_client.contrib.django_tasks import CatmqBackend


class DummyBackend(CatmqBackend):
    """The backend under test, with what tests ask a DummyBackend for."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.results: list[Any] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.results.append(super().enqueue(task, args, kwargs))
        return self.results[-1]

    def clear(self) -> None:
        self.results.clear()
