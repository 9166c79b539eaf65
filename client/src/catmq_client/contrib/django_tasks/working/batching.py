"""Changes of the rows of several tasks by one statement, so that many short tasks wait for
few commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from catmq_client.contrib.django_tasks.models import TaskRecord

# Changes in one statement.
MOST = 100


class Guard(NamedTuple):
    """A row, and the token without which it is not changed."""

    id: str
    token: int


def change_rows(
    using: str,
    guards: Sequence[Guard],
    *,
    before: str,
    same: Mapping[str, Any],
    each: Mapping[str, Sequence[Any]],
) -> int:
    """Return how many rows of tasks had the status `before` and their token, and were
    changed.

    `same` has the new values that are the same in all rows, `each` those of one row each,
    in order of
    `guards`. One statement, without a query of Django's ORM: building that takes longer
    than the statement.
    """
    connection = connections[using]
    name_of = connection.ops.quote_name
    fields: dict[str, Any] = {
        field.name: field for field in TaskRecord._meta.concrete_fields
    }
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
