"""Helpers for rows with a name: find, lock, create, change and convert them to views.

Lock order: a transaction that changes groups or topics locks them with its first
statements, groups by rising id, then topics by rising id, then anything else. On SQLite the
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
from metadata.rules.audit_verbs import Verb
from metadata.rules.topics.states import TopicState

M = TypeVar("M", bound=Model)
V = TypeVar("V")


def select(statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a SELECT in plain SQL and return its rows. `clock.to_utc` parses times.

    For loops that run all the time: to build a query set takes longer than the query.
    """
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def placeholders(parameters: Sequence[object]) -> str:
    """Return the placeholders of an IN clause, such as `%s, %s`."""
    return ", ".join(["%s"] * len(parameters))


def update(statement: str, parameters: Sequence[object] = ()) -> int:
    """Run an UPDATE in plain SQL, for the same callers. Return the number of matched rows."""
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def make_view(view: type[V], row: Model, **values: Any) -> V:
    """Return an instance of `view`, a struct or a dataclass. Each field has the row's
    attribute of the same name, unless it is among `values`.

    A field `x_ms` gets the time `x` in ms since 1970. A foreign key becomes the name of its
    row.
    """
    names = getattr(view, "__struct_fields__", None) or [
        field.name
        for field in fields(view)  # type: ignore[arg-type]
    ]
    return view(
        **values, **{name: _value(row, name) for name in names if name not in values}
    )


def _value(row: Model, name: str) -> Any:
    if name.endswith("_ms") and not hasattr(row, name):
        time = getattr(row, name.removesuffix("_ms"))
        return None if time is None else ms(time)
    value = getattr(row, name)
    return value.name if isinstance(value, Model) else value  # type: ignore[attr-defined]


def find_by_name(rows: QuerySet[M], name: str, missing: Callable[[str], NotFound]) -> M:
    """Return the row called `name`. Raises missing(name) if there is none."""
    row = rows.filter(name=name).first()
    # MariaDB may match another spelling, too.
    if row is None or row.name != name:  # type: ignore[attr-defined]
        raise missing(name)
    return row


def create(rows: QuerySet[M], label: str, *, name: str, **values: Any) -> M:
    """Create a row. Raises Conflict(already_exists), whose text begins with the label, such
    as "Topic".
    """
    conflict = Conflict(f"{label} {name} exists already.", code=Code.ALREADY_EXISTS)
    if rows.filter(name=name).exists():
        raise conflict
    try:
        return rows.create(name=name, **values)
    except IntegrityError:  # another transaction was first
        raise conflict from None


def changed_values(row: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present values of a row, for those of `values` that would change it."""
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
    """Write the `values` of the columns in `before` (from changed_values()), and the audit
    entry. `also` are other changed columns of the row, which are saved with them.
    """
    after = {key: values[key] for key in before}
    for key, value in after.items():
        setattr(row, key, value)
    row.save(update_fields=(*before, *also))
    audit.record(
        actor=actor, verb=Verb.UPDATE, kind=kind, name=name, before=before, after=after
    )


def lock_group_by_id(group_id: int) -> ConsumerGroup:
    """Lock and return a group's row. Raises NotFound(group_not_found)."""
    row = (
        ConsumerGroup.objects.select_for_update()
        .filter(pk=group_id, deleted_at__isnull=True)
        .first()
    )
    if row is None:
        raise NotFound("The group was deleted.", code=Code.GROUP_NOT_FOUND)
    return row


def lock_group(name: str) -> ConsumerGroup:
    """Lock and return the group called `name`. Raises NotFound(group_not_found)."""
    return find_by_name(
        ConsumerGroup.objects.select_for_update().filter(deleted_at__isnull=True),
        name,
        no_group,
    )


def find_group(name: str) -> ConsumerGroup:
    """Return the group called `name`. Raises NotFound(group_not_found)."""
    return find_by_name(
        ConsumerGroup.objects.filter(deleted_at__isnull=True), name, no_group
    )


def lock_topic(name: str) -> Topic:
    """Lock and return the ready topic called `name`. Raises NotFound(topic_not_found)."""
    return find_by_name(
        Topic.objects.select_for_update().filter(state=TopicState.READY), name, no_topic
    )


def lock_node(name: str) -> DbNode:
    """Lock and return the node called `name`. Raises NotFound(node_not_found)."""
    return find_by_name(DbNode.objects.select_for_update(), name, no_node)


def origin_of(topic: Topic) -> tuple[str, str] | None:
    """Return the names of the group and topic whose failed messages a topic holds. None if
    it is no failure topic.
    """
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
