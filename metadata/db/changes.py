"""The change log, from which brokers learn of changed metadata: a counter, and a row for
each changed object.

The counter's row stays locked until the transaction ends, so the numbers become visible in
order. A broker that has read up to n misses nothing if it asks for numbers above n. (Rows
with AUTO_INCREMENT ids become visible out of order: 13 % were missed.)

All changes of all groups pass that lock, so no transaction may hold it for long. On MySQL
and MariaDB the counter is raised by the same statement string that commits
(catmq_site/mysql, `last_words`). As a statement of its own it allowed only a few changes a
second, because a busy broker held the lock while it waited for the answer or for its
interpreter. On SQLite a writer locks the whole database anyway.
"""

from __future__ import annotations

import random

from django.db import transaction
from django.db.models import F

from metadata.models import ChangeCounter, ChangeLog

KINDS = ("node", "topic", "group", "subscription", "key")
KEPT = 10_000  # numbers in the log; a broker that needs older numbers loads everything
PRUNE_EVERY = 500  # changes, on average


def record_change(kind: str, *ids: int) -> None:
    """Record a change of the rows `ids` of a kind (KINDS). Must be the last statement of a
    transaction, because it locks the row that all changes share.

    A change of a queue is recorded as a change of its topic.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind} is not one of {KINDS}")
    rows = sorted(set(ids))
    last_words = getattr(transaction.get_connection(), "last_words", None)
    if last_words is None:
        ChangeCounter.objects.update(n=F("n") + 1)
        n = ChangeCounter.objects.values_list("n", flat=True).get()
        ChangeLog.objects.bulk_create([ChangeLog(n=n, kind=kind, row=row) for row in rows])
    else:
        # The same without parameters. The values are ids and a kind of KINDS.
        counter, log = ChangeCounter._meta.db_table, ChangeLog._meta.db_table
        last_words.append(
            f"UPDATE {counter} SET n = LAST_INSERT_ID(n + 1); SET @n = LAST_INSERT_ID()"  # noqa: S608
        )
        if rows:
            values = ", ".join(f"(@n, '{kind}', {row:d})" for row in rows)
            last_words.append(f"INSERT INTO {log} (n, kind, `row`) VALUES {values}")  # noqa: S608
    if random.randrange(PRUNE_EVERY) == 0:
        n = ChangeCounter.objects.values_list("n", flat=True).get()
        ChangeLog.objects.filter(n__lte=n - KEPT).delete()
