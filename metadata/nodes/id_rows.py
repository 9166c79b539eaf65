"""Ids that metadata has given, which nodes hold, too: after a restore of metadata none is
given twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import models, transaction

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable
from metadata.models import BroadcastInstance, ChangeCounter, ConsumerGroup, Queue, Topic

_COUNTER = re.compile(r"AUTO_INCREMENT=(\d+)")
GIVEN: Mapping[str, type[models.Model]] = {
    "queue": Queue,
    "group": ConsumerGroup,
    "topic": Topic,
    "instance": BroadcastInstance,
}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of metadata: incarnation, number of changes, highest ids given by kind (of
    GIVEN).
    """

    at_ms: int
    incarnation: str
    changes: int
    ids: dict[str, int]


def read_counters() -> Counters:
    with reachable():
        row = ChangeCounter.objects.get()
        ids = {kind: _given(model._meta.db_table) for kind, model in GIVEN.items()}
        return Counters(ms(database_now()), row.incarnation, row.n, ids)


def group_names() -> dict[int, str]:
    with reachable():
        return dict(ConsumerGroup.objects.values_list("pk", "name"))


def topic_names() -> dict[int, str]:
    """{queue: name of its topic}."""
    with reachable():
        return dict(Queue.objects.values_list("pk", "topic__name"))


def raise_ids(*, ids: Mapping[str, int], actor: Actor) -> None:
    """Give no id up to these any more. Needs `admin`.

    A row of a lower id would meet what a node still holds of an earlier one.
    """
    access.require_everything(actor, "metadata", what="node")
    with reachable():
        for kind, highest in ids.items():
            table = GIVEN[kind]._meta.db_table
            if _given(table) < highest:
                _raise(table, highest)
        audit.record(
            actor=actor, verb="raise_ids", kind="metadata", name="metadata", after=dict(ids)
        )


def _given(table: str) -> int:
    """Return the highest id that was given to a row of a table, which may be gone; 0 for
    none.
    """
    connection = transaction.get_connection()
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(f"SHOW CREATE TABLE {table}")
            counter = _COUNTER.search(cursor.fetchone()[1])
            return int(counter[1]) - 1 if counter is not None else 0
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
        return int(row[0]) if row is not None else 0


def _raise(table: str, highest: int) -> None:
    connection = transaction.get_connection()
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(f"ALTER TABLE {table} AUTO_INCREMENT = {highest + 1:d}")
            return
        cursor.execute(
            "UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [highest, table]
        )
        if not cursor.rowcount:
            cursor.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, highest]
            )
