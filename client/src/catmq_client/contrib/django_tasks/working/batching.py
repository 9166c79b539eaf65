"""UPDATE of the rows of several tasks in one statement, so that many short tasks share a
commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from catmq_client.contrib.django_tasks.models import TaskRecord

# Rows in one statement.
MAX_ROWS = 100


class Guard(NamedTuple):
    """A row's id, and the token that it must have to be updated."""

    id: str
    token: int


def update_rows(
    using: str,
    guards: Sequence[Guard],
    *,
    status: str,
    common: Mapping[str, Any],
    per_row: Mapping[str, Sequence[Any]],
) -> int:
    """Update the rows of tasks that have the given status and their guard's token. Return
    their number.

    `common` has the new values that are the same in all rows. `per_row` has a value for each
    row, in the order of `guards`.
    """
    # Written by hand: Django's ORM takes longer to build this query than the database to
    # execute it.
    connection = connections[using]
    quote = connection.ops.quote_name
    fields: dict[str, Any] = {
        field.name: field for field in TaskRecord._meta.concrete_fields
    }
    assignments: list[str] = []
    parameters: list[Any] = []
    for name, value in common.items():
        field = fields[name]
        assignments.append(f"{quote(field.column)} = %s")
        parameters.append(field.get_db_prep_save(value, connection))
    key = quote("id")
    for name, values in per_row.items():
        field = fields[name]
        case = f"CASE {key}{' WHEN %s THEN %s' * len(guards)} END"
        # PostgreSQL takes the type of a CASE from its parameters, which is text.
        if connection.features.requires_casted_case_in_updates:
            case = f"CAST({case} AS {field.db_type(connection)})"
        assignments.append(f"{quote(field.column)} = {case}")
        for guard, value in zip(guards, values, strict=True):
            parameters += (guard.id, field.get_db_prep_save(value, connection))
    matches = " OR ".join([f"({key} = %s AND {quote('token')} = %s)"] * len(guards))
    where = f"{quote('status')} = %s AND ({matches})"
    parameters.append(status)
    for guard in guards:
        parameters += guard
    table = quote(TaskRecord._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET {', '.join(assignments)} WHERE {where}",  # noqa: S608
            parameters,
        )
        return int(cursor.rowcount)
