"""Functions of django-tasks-db whose tests are left out."""

from __future__ import annotations

from contextlib import ContextDecorator


class exclusive_transaction(ContextDecorator):
    """Locks nothing."""

    def __enter__(self) -> None:
        """Begin nothing."""

    def __exit__(self, *_: object) -> None:
        """End nothing."""


def normalize_uuid(value: object) -> str:
    return str(value)
