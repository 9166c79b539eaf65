"""Rows that have a name: found, locked, made, edited, and shown as frozen values.

Locks on groups and topics are always the first statement of a transaction that touches
them: groups by rising id, then topics by rising id, then anything else. On SQLite the
transaction itself (BEGIN IMMEDIATE) is the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Model, QuerySet

from metadata.actors import Actor
from metadata.db import audit
from metadata.db.clock import ms
from metadata.errors import Code, Conflict, NotFound
from metadata.models import ConsumerGroup, DbNode, Topic

M = TypeVar("M", bound=Model)
V = TypeVar("V")


def select(statement: str, given: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Return the rows that a statement of text finds; `clock.utc` reads times.

    For loops that ask every few moments: to build a query set takes longer than to run it.
    """
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(statement, given)
        return list(cursor.fetchall())


def placeholders(given: Sequence[object]) -> str:
    """Return the places of parameters between the brackets of an IN."""
    return ", ".join(["%s"] * len(given))


def update(statement: str, given: Sequence[object] = ()) -> int:
    """Run an UPDATE of text, for the same callers; return the number of rows that it found."""
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(statement, given)
        return int(cursor.rowcount)


def make_view(view: type[V], row: Model, **given: Any) -> V:
    """Return a dataclass with the attributes of a row that have its fields' names, unless
    they are `given`.

    A field `x_ms` gets the time `x` in ms since 1970, and a field that is another row gets
    that one's name.
    """
    names = [field.name for field in fields(view)]  # type: ignore[arg-type]
    return view(**given, **{name: _value(row, name) for name in names if name not in given})


def _value(row: Model, name: str) -> Any:
    if name.endswith("_ms") and not hasattr(row, name):
        time = getattr(row, name.removesuffix("_ms"))
        return None if time is None else ms(time)
    value = getattr(row, name)
    return value.name if isinstance(value, Model) else value  # type: ignore[attr-defined]


def find_by_name(rows: QuerySet[M], name: str, missing: Callable[[str], NotFound]) -> M:
    """Return the row called `name`; raise `missing` of it. MariaDB finds other spellings,
    too.
    """
    row = rows.filter(name=name).first()
    if row is None or row.name != name:  # type: ignore[attr-defined]
        raise missing(name)
    return row


def create(rows: QuerySet[M], what: str, *, name: str, **values: Any) -> M:
    """Return a new row. Raises Conflict(already_exists)."""
    conflict = Conflict(f"{what} {name} exists already.", code=Code.ALREADY_EXISTS)
    if rows.filter(name=name).exists():
        raise conflict
    try:
        return rows.create(name=name, **values)
    except IntegrityError:
        raise conflict from None


def changed_values(row: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the row has now where `values` are others."""
    return {key: getattr(row, key) for key in values if getattr(row, key) != values[key]}


def save_changes(
    row: Model,
    before: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    actor: Actor,
    kind: str,
    name: str,
    also: Sequence[str] = (),
) -> None:
    """Write those of `values` that differ from `before`, with the columns `also`, and the
    audit row.
    """
    after = {key: values[key] for key in before}
    for key, value in after.items():
        setattr(row, key, value)
    row.save(update_fields=(*before, *also))
    audit.record(
        actor=actor, verb="update", kind=kind, name=name, before=before, after=after
    )


def lock_group_by_id(group_id: int) -> ConsumerGroup:
    """The group's row, locked; raises NotFound(group_not_found)."""
    row = (
        ConsumerGroup.objects.select_for_update()
        .filter(pk=group_id, deleted_at__isnull=True)
        .first()
    )
    if row is None:
        raise NotFound("The group was deleted.", code=Code.GROUP_NOT_FOUND)
    return row


def lock_group(name: str) -> ConsumerGroup:
    """The row of the group called `name`, locked; raises NotFound(group_not_found)."""
    return find_by_name(
        ConsumerGroup.objects.select_for_update().filter(deleted_at__isnull=True),
        name,
        no_group,
    )


def find_group(name: str) -> ConsumerGroup:
    """The row of the group called `name`; raises NotFound(group_not_found)."""
    return find_by_name(
        ConsumerGroup.objects.filter(deleted_at__isnull=True), name, no_group
    )


def lock_topic(name: str) -> Topic:
    """The row of the ready topic called `name`, locked; raises NotFound(topic_not_found)."""
    return find_by_name(
        Topic.objects.select_for_update().filter(state=Topic.State.READY), name, no_topic
    )


def lock_node(name: str) -> DbNode:
    """The row of the node called `name`, locked; raises NotFound(node_not_found)."""
    return find_by_name(DbNode.objects.select_for_update(), name, no_node)


def origin_of(topic: Topic) -> tuple[str, str] | None:
    """Group and topic whose failed messages a topic holds; None if it is no failure topic."""
    if topic.failure_group is None or topic.failure_of is None:
        return None
    return topic.failure_group.name, topic.failure_of.name


def no_group(name: str) -> NotFound:
    return NotFound(
        f"Group {name} does not exist. Create it: catmq group create {name}",
        code=Code.GROUP_NOT_FOUND,
    )


def no_topic(name: str) -> NotFound:
    return NotFound(
        f"Topic {name} does not exist. Create it: catmq topic create {name} --queues 4",
        code=Code.TOPIC_NOT_FOUND,
    )


def no_node(name: str) -> NotFound:
    return NotFound(
        f"Node {name} does not exist. List them: catmq nodes", code=Code.NODE_NOT_FOUND
    )
