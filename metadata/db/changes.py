"""Tells every broker what changed: the counter, and a log row per changed thing.

The counter's row stays locked until the transaction ends, so numbers become visible in
order and a broker that has seen n misses nothing by asking for what is above n. (Rows with
AUTO_INCREMENT ids become visible out of order: 13 % were missed.)

All changes of all groups pass that lock, so nobody may hold it for long. On MySQL / MariaDB
the counter is raised in the very string that commits (catmq_site/mysql): while the process
waited for an answer, or for its interpreter, a few changes a second were all that a busy
broker could make. On SQLite whoever writes has the whole database anyway.
"""

from __future__ import annotations

import random

from django.db import transaction
from django.db.models import F

from metadata.models import ChangeCounter, ChangeLog

KINDS = ("node", "topic", "group", "subscription", "key")
KEPT = 10_000  # numbers; a broker further behind loads everything
PRUNE_EVERY = 500


def record_change(kind: str, *ids: int) -> None:
    """Count one change of the rows `ids` of a kind, as the last act of a transaction.

    A topic stands for its queues too.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind} is not one of {KINDS}")
    rows = sorted(set(ids))
    last_words = getattr(transaction.get_connection(), "last_words", None)
    if last_words is None:
        _count(kind, rows)
    else:
        last_words.extend(_counting(kind, rows))
    if random.randrange(PRUNE_EVERY) == 0:
        n = ChangeCounter.objects.values_list("n", flat=True).get()
        ChangeLog.objects.filter(n__lte=n - KEPT).delete()


def _count(kind: str, rows: list[int]) -> None:
    ChangeCounter.objects.update(n=F("n") + 1)
    n = ChangeCounter.objects.values_list("n", flat=True).get()
    ChangeLog.objects.bulk_create([ChangeLog(n=n, kind=kind, row=row) for row in rows])


def _counting(kind: str, rows: list[int]) -> list[str]:
    counter, log = ChangeCounter._meta.db_table, ChangeLog._meta.db_table
    raise_it = f"UPDATE {counter} SET n = LAST_INSERT_ID(n + 1); SET @n = LAST_INSERT_ID()"  # noqa: S608
    values = ", ".join(f"(@n, '{kind}', {row:d})" for row in rows)
    return (
        [raise_it, f"INSERT INTO {log} (n, kind, `row`) VALUES {values}"]  # noqa: S608
        if rows
        else [raise_it]
    )
