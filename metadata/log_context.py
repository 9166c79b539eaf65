"""Fields that log lines have in common: who asks for what, for a request, a job or a command.

A field is added where it becomes known, and every line that is logged until the end of the
request has it. Text lines leave the fields out; see catmq_site/logs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# In the order in which a JSON line has them.
FIELDS = ("request_id", "actor", "topic", "group", "consumer", "trace_id", "job")

_fields: ContextVar[dict[str, Any] | None] = ContextVar("log fields", default=None)


@contextmanager
def log_context(**fields: Any) -> Iterator[dict[str, Any]]:
    """Give all lines that this thread logs within the block these fields. Values may be any
    objects; a line has their text.
    """
    token = _fields.set(fields)
    try:
        yield fields
    finally:
        _fields.reset(token)


def add_fields(**fields: Any) -> None:
    """Add fields to the context. Outside of a context nothing happens."""
    # Requests have no context unless their lines need one, so this is usually a look-up.
    context = _fields.get()
    if context is not None:
        context.update(fields)


def current_fields() -> dict[str, Any]:
    return _fields.get() or {}
