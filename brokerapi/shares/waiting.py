"""A member of a share group asks for runs, and may wait for the first.

It waits like a pull (longpoll.py): without a database connection, at one of the places that
pulls have, until a message comes, a lease ends, the group changes or the time is over. A
new message wakes one of those who wait; who was woken for nothing looks again. Nothing is
leased for a member that hung up meanwhile: its messages would sleep until the lease ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from django.db import close_old_connections

from brokerapi.http import draining, longpoll
from messagestore.heads.heads import board
from messagestore.shares import finishing, leasing
from messagestore.shares.finishing import GrantReport, ReportOutcome
from messagestore.shares.leasing import LeaseResult, MessageRequest
from metadata.cache.snapshot_types import GroupInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Code, Conflict
from metadata.limits.concurrency import limiter


class Answered(NamedTuple):
    """Runs, and what came of the reports. `retry_after_ms`: no place to wait was free."""

    group: GroupInfo
    shared: LeaseResult
    recorded: list[ReportOutcome]
    retry_after_ms: int | None = None


def share_or_wait(
    *,
    consumer: ConsumerId,
    wanted: MessageRequest,
    reports: Sequence[GrantReport],
    wait_ms: int,
    has_hung_up: Callable[[], bool],
    address: str,
) -> Answered:
    """Record reports, then lease runs, waiting up to `wait_ms` for the first. `address` is
    the client's.

    Raises Draining, Conflict (group_settings_differ), NotFound, NodeUnavailable,
    OutcomeUnknown.
    """
    draining.check()
    group = share_group(consumer)
    recorded = finishing.record(consumer=consumer, group=group, reports=reports)
    until, has_place = time.monotonic() + wait_ms / 1000, False
    asker = longpoll.asker(consumer.text, key_id=consumer.key_id, address=address)
    try:
        while not has_hung_up():
            shared = leasing.lease(consumer=consumer, request=wanted)
            if shared.runs or draining.hurries() or time.monotonic() >= until:
                return Answered(leasing.find_group(consumer), shared, recorded)
            has_place = has_place or longpoll.take_place(asker)
            if not has_place:
                retry_ms = min(wait_ms, random.randint(*longpoll.TURNED_AWAY_MS))
                return Answered(group, shared, recorded, retry_ms)
            _wait(consumer, shared, until)
        return Answered(group, LeaseResult([], {}, {}), recorded)
    finally:
        if has_place:
            longpoll.give_back_place(asker)


def share_group(consumer: ConsumerId) -> GroupInfo:
    """The group of a consumer. Raises NotFound, and Conflict (group_settings_differ) unless
    it shares.
    """
    group = leasing.find_group(consumer)
    if not group.is_share:
        raise Conflict(
            f"Group {group.name} is {group.mode}, not a share group: its members acquire "
            "queues and pull.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    return group


def _wait(consumer: ConsumerId, shared: LeaseResult, until: float) -> None:
    left_s = min(until - time.monotonic(), shared.retry_after_s)
    if left_s <= 0:
        return
    close_old_connections()
    with (
        board.watch(consumer.group_id, shared.wake_offsets, shares=True) as waiter,
        limiter.aside(),
    ):
        waiter.wait(left_s)
