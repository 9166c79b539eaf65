"""Requests of Java clients: how many of each address and client were answered, refused or
limited.

Java clients have no API key, so this is how an operator sees who they are. A request only
adds to a count in memory. A loop of each worker writes the counts to the database, like
those of the producers of topics.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from django.db.models import F
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import UtcNow, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.models import JavaCaller
from metadata.rules.rights import Right
from metadata.topics.producers import HOUR_S, last_hour

FLUSH_S = 20.0
KEPT_DAYS = 7
MAX_ROWS = 1_000
# Callers that a process counts between two flushes. Further callers are not counted, so
# that invented addresses cannot fill the memory.
MAX_COUNTED = 1_000
MAX_CHARS = 100
Outcome = Literal["answered", "refused", "limited"]
OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "limited")
Caller = tuple[str, str]  # address, client


class CallerView(Struct, frozen=True):
    """Requests of the last hour, estimated from the counts of two clock hours.

    `sdk` is empty where a request was refused before it was read.
    """

    address: str
    sdk: str
    answered: int
    refused: int
    limited: int
    last_seen_at_ms: int


_guard = threading.Lock()
_counts: dict[Caller, Counter[str]] = {}


def count_request(*, address: str, sdk: str, outcome: Outcome) -> None:
    caller = (address[:MAX_CHARS], sdk[:MAX_CHARS].strip())
    with _guard:
        if caller in _counts or len(_counts) < MAX_COUNTED:
            _counts.setdefault(caller, Counter())[outcome] += 1


def flush() -> int:
    """Write the counts of this process to the database. Return the number of callers. Run
    by a loop of every worker.

    Raises MetadataUnavailable. The counts are lost then, which their purpose allows.
    """
    with _guard:
        counts = dict(_counts)
        _counts.clear()
    if counts:
        _write(counts)
    return len(counts)


def list_callers(*, actor: Actor) -> list[CallerView]:
    """Return the callers of the last 7 days, the most recent first. Needs `admin`. Raises
    Forbidden.
    """
    access.require(actor, Right.ADMIN, "*", what="list of Java clients")
    with reachable():
        now = database_now()
        return [
            CallerView(
                address=row.address,
                sdk=row.sdk,
                last_seen_at_ms=ms(row.last_seen),
                **{
                    name: last_hour(
                        getattr(row, name),
                        getattr(row, f"{name}_before"),
                        hour=row.hour,
                        now_s=now.timestamp(),
                    )
                    for name in OUTCOMES
                },
            )
            for row in JavaCaller.objects.order_by("-last_seen", "pk")
        ]


@transactional
def _write(counts: dict[Caller, Counter[str]]) -> None:
    now = database_now()
    hour = int(now.timestamp()) // HOUR_S
    callers = sorted(counts)
    JavaCaller.objects.bulk_create(
        [
            JavaCaller(address=address, sdk=sdk, hour=hour, last_seen=now)
            for address, sdk in callers
        ],
        ignore_conflicts=True,  # another process may insert the same row
    )
    for address, sdk in callers:
        rows = JavaCaller.objects.filter(address=address, sdk=sdk)
        # MySQL assigns columns from left to right and uses the new values, so the copies
        # must come before the zeros.
        before = {f"{name}_before": F(name) for name in OUTCOMES}
        rows.filter(hour=hour - 1).update(**before, **dict.fromkeys(OUTCOMES, 0), hour=hour)
        rows.filter(hour__lt=hour - 1).update(
            **dict.fromkeys([*before, *OUTCOMES], 0), hour=hour
        )
        added = counts[address, sdk]
        rows.update(
            last_seen=UtcNow(),
            **{name: F(name) + added[name] for name in OUTCOMES if added[name]},
        )
    # The cap holds for all processes together, so it is applied to the table.
    surplus = JavaCaller.objects.order_by("-last_seen", "-pk").values_list("pk", flat=True)[
        MAX_ROWS:
    ]
    JavaCaller.objects.filter(pk__in=list(surplus)).delete()


prune = PruneRule(JavaCaller.objects.all(), "last_seen", KEPT_DAYS)
