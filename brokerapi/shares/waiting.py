"""A member of a share group asks for runs, and may wait for the first.

It waits like a pull (longpoll.py): without a database connection, in a place of the waiting
pulls, until a message arrives, a lease ends, the group changes or the time is over. A new
message wakes a single waiting member. If it finds nothing to lease, it waits again. Nothing
is leased for a client that has hung up: its messages would be stuck until the lease ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from django.db import close_old_connections

from brokerapi.http import draining, longpoll
from messagestore.heads.heads import board
from messagestore.shares import finishing, queue_choice
from messagestore.shares.finishing import GrantReport, ReportOutcome
from messagestore.shares.queue_choice import LeaseResult, MessageRequest
from metadata.cache.snapshot_types import GroupInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Code, Conflict
from metadata.limits.concurrency import limiter


class ShareResult(NamedTuple):
    """Leased runs, and the outcome of each report. `retry_after_ms`: no place to wait was
    free.
    """

    group: GroupInfo
    shared: LeaseResult
    recorded: list[ReportOutcome]
    retry_after_ms: int | None = None


def share_or_wait(
    *,
    consumer: ConsumerId,
    request: MessageRequest,
    reports: Sequence[GrantReport],
    wait_ms: int,
    has_hung_up: Callable[[], bool],
    address: str,
) -> ShareResult:
    """Record reports, then lease runs, waiting up to `wait_ms` for the first.

    `address` is that of the client. Raises Draining, Conflict (group_settings_differ),
    NotFound, NodeUnavailable, OutcomeUnknown.
    """
    draining.check()
    group = share_group(consumer)
    # Reports are recorded before runs are leased, as the API promises.
    recorded = finishing.record(consumer=consumer, group=group, reports=reports)
    until, has_place = time.monotonic() + wait_ms / 1000, False
    owner = longpoll.place_owner(consumer.text, key_id=consumer.key_id, address=address)
    with ExitStack() as places:
        while not has_hung_up():
            shared = queue_choice.lease(consumer=consumer, request=request)
            if shared.runs or draining.must_not_wait() or time.monotonic() >= until:
                return ShareResult(queue_choice.find_group(consumer), shared, recorded)
            # A place is taken once and kept over several waits.
            has_place = has_place or places.enter_context(longpoll.waiting_place(owner))
            if not has_place:
                retry_ms = min(wait_ms, random.randint(*longpoll.TURNED_AWAY_MS))
                return ShareResult(group, shared, recorded, retry_ms)
            wait_s = min(until - time.monotonic(), shared.retry_after_s)
            if wait_s > 0:
                # A waiting thread must not hold a connection to the metadata database.
                close_old_connections()
                group_id, offsets = consumer.group_id, shared.wake_offsets
                with board.watch(group_id, offsets, shares=True) as waiter, limiter.aside():
                    waiter.wait(wait_s)
        return ShareResult(group, LeaseResult([], {}, {}), recorded)


def share_group(consumer: ConsumerId) -> GroupInfo:
    """Return the group of a consumer. Raises NotFound, and Conflict (group_settings_differ)
    if it is not a share group.
    """
    group = queue_choice.find_group(consumer)
    if not group.is_share:
        raise Conflict(
            f"Group {group.name} is {group.mode}, not a share group: its members acquire "
            "queues and pull.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    return group
