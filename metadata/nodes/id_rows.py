"""Ids that metadata has assigned. Nodes store them, too, so after a restore of metadata no id
may be assigned a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.db import models, transaction
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable
from metadata.models import BroadcastInstance, ChangeCounter, ConsumerGroup, Queue, Topic
from metadata.rules.audit_verbs import Verb

_COUNTER = re.compile(r"AUTO_INCREMENT=(\d+)")
ID_TABLES: Mapping[str, type[models.Model]] = {
    "queue": Queue,
    "group": ConsumerGroup,
    "topic": Topic,
    "instance": BroadcastInstance,
}


class Counters(Struct, frozen=True):
    """Counters of metadata: its incarnation, the number of its last change, and the highest
    assigned ids by kind (of ID_TABLES).
    """

    at_ms: int
    incarnation: str
    changes: int
    ids: dict[str, int]


def read_counters() -> Counters:
    with reachable():
        row = ChangeCounter.objects.get()
        ids = {kind: _highest_id(model._meta.db_table) for kind, model in ID_TABLES.items()}
        return Counters(ms(database_now()), row.incarnation, row.n, ids)


def group_names() -> dict[int, str]:
    with reachable():
        return dict(ConsumerGroup.objects.values_list("pk", "name"))


def topic_names() -> dict[int, str]:
    """Return the name of the topic of each queue, by queue id."""
    with reachable():
        return dict(Queue.objects.values_list("pk", "topic__name"))


def raise_ids(*, ids: Mapping[str, int], actor: Actor) -> None:
    """Never assign an id up to `ids`, by kind (of ID_TABLES). Needs `admin`.

    Nodes may still have data of a deleted row with such an id.
    """
    access.require_everything(actor, "metadata", what="node")
    # No transaction, because ALTER TABLE would commit it.
    with reachable():
        connection = transaction.get_connection()
        for kind, highest in ids.items():
            table = ID_TABLES[kind]._meta.db_table
            if _highest_id(table) >= highest:
                continue
            with connection.cursor() as cursor:
                if connection.vendor == "mysql":
                    cursor.execute(f"ALTER TABLE {table} AUTO_INCREMENT = {highest + 1:d}")
                    continue
                values = [highest, table]
                cursor.execute(
                    "UPDATE sqlite_sequence SET seq = %s WHERE name = %s", values
                )
                # SQLite has no row for a table into which nothing was ever inserted.
                if not cursor.rowcount:
                    cursor.execute(
                        "INSERT INTO sqlite_sequence (seq, name) VALUES (%s, %s)", values
                    )
        audit.record(
            actor=actor,
            verb=Verb.RAISE_IDS,
            kind="metadata",
            name="metadata",
            after=dict(ids),
        )


def _highest_id(table: str) -> int:
    """Return the highest id that a row of a table ever had, 0 if none. The row may be
    deleted.
    """
    connection = transaction.get_connection()
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            # MySQL 8 caches the counter in information_schema for a day.
            cursor.execute(f"SHOW CREATE TABLE {table}")
            counter = _COUNTER.search(cursor.fetchone()[1])
            return int(counter[1]) - 1 if counter is not None else 0
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
        return int(row[0]) if row is not None else 0
