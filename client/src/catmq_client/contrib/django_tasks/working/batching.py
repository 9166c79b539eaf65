"""Changes of rows that several threads ask for at one time, written by one statement.

The first thread writes at once, for itself. Those that come meanwhile wait, and the first of them writes for
all. So a worker with many short tasks waits for few commits, and one with little to do waits for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from catmq_client.contrib.django_tasks.models import TaskRecord

Item = TypeVar("Item")

# Changes in one statement.
MOST = 100


class Guard(NamedTuple):
    """A row, and the token without which it is not changed."""

    id: str
    token: int


class _Turn(Generic[Item]):
    """A thread's change, and what came of it."""

    __slots__ = ("event", "item", "leads", "written")

    def __init__(self, item: Item, *, leads: bool) -> None:
        self.item, self.leads, self.event = item, leads, threading.Event()
        self.written: bool | None = None  # None: nobody tried, or all together failed


class Batcher(Generic[Item]):
    """Writes what several threads ask for together.

    `write` takes changes and tells for each if it was made. If it fails for several, each thread repeats its
    own alone, so that each raises only what is wrong with its own.
    """

    def __init__(self, write: Callable[[Sequence[Item]], Sequence[bool]]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._is_busy = False
        self._waiting: list[_Turn[Item]] = []

    def write(self, item: Item) -> bool:
        """Return True if the change was made. Raises what `write` raises for it."""
        with self._lock:
            turn = _Turn(item, leads=not self._is_busy)
            self._is_busy = True
            if not turn.leads:
                self._waiting.append(turn)
        if not turn.leads:
            turn.event.wait()
        if turn.leads:
            self._write_all(turn)
        if turn.written is None:
            (turn.written,) = self._write([item])
        return turn.written

    def _write_all(self, mine: _Turn[Item]) -> None:
        """Write what waits, and let the next thread lead."""
        with self._lock:
            turns = [mine, *self._waiting[: MOST - 1]]
            del self._waiting[: MOST - 1]
        try:
            for turn, written in zip(turns, self._write([turn.item for turn in turns]), strict=True):
                turn.written = written
        except (DatabaseError, InterfaceError):
            if len(turns) == 1:
                raise
        finally:
            with self._lock:
                following = self._waiting.pop(0) if self._waiting else None
                self._is_busy = following is not None
            if following is not None:
                following.leads = True
                following.event.set()
            for turn in turns[1:]:
                turn.event.set()


def change_rows(
    using: str,
    guards: Sequence[Guard],
    *,
    before: str,
    same: Mapping[str, Any],
    each: Mapping[str, Sequence[Any]],
) -> int:
    """Return how many rows of tasks had the status `before` and their token, and were changed.

    `same` has the new values that are the same in all rows, `each` those of one row each, in order of
    `guards`. One statement, without a query of Django's ORM: building that takes longer than the statement.
    """
    connection = connections[using]
    name_of = connection.ops.quote_name
    fields: dict[str, Any] = {field.name: field for field in TaskRecord._meta.concrete_fields}
    sets: list[str] = []
    values: list[Any] = []
    for name, value in same.items():
        field = fields[name]
        sets.append(f"{name_of(field.column)} = %s")
        values.append(field.get_db_prep_save(value, connection))
    key = name_of("id")
    for name, its in each.items():
        field = fields[name]
        case = f"CASE {key}{' WHEN %s THEN %s' * len(guards)} END"
        if connection.features.requires_casted_case_in_updates:
            case = f"CAST({case} AS {field.db_type(connection)})"
        sets.append(f"{name_of(field.column)} = {case}")
        for guard, value in zip(guards, its, strict=True):
            values += (guard.id, field.get_db_prep_save(value, connection))
    wanted = " OR ".join([f"({key} = %s AND {name_of('token')} = %s)"] * len(guards))
    where = f"{name_of('status')} = %s AND ({wanted})"
    values.append(before)
    for guard in guards:
        values += guard
    table = name_of(TaskRecord._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {', '.join(sets)} WHERE {where}", values)  # noqa: S608
        return int(cursor.rowcount)
