"""The admin's pages, one file per noun; Django imports this package and with it all of them."""

from __future__ import annotations

from portal.admin import (
    alarms,
    brokers,
    consumers,
    groups,
    names,
    nodes,
    operations,
    rebalances,
    reports,
    schedules,
    topics,
    users,
)

names.translate()

__all__ = [
    "alarms",
    "brokers",
    "consumers",
    "groups",
    "keys",
    "names",
    "nodes",
    "operations",
    "queues",
    "rebalances",
    "reports",
    "schedules",
    "series",
    "topics",
    "users",
]
