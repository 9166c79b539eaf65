"""Expiry of members: a member that is silent for longer than the session timeout is
removed.

A loop of one broker calls expire_silent_members() every half second. All brokers call
observe_database(), because each may take over that loop. How long silence must last, and
why an outage of the database delays expiry, is in metadata.rules.membership.liveness.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from metadata.db.clock import as_parameter, before, database_now, to_utc
from metadata.db.contact import contact
from metadata.db.rows import lock_group_by_id, select
from metadata.db.transactions import reachable, transactional
from metadata.errors import MetadataUnavailable, NotFound
from metadata.grouping import grouped
from metadata.membership import casual_groups
from metadata.membership.consumers import drop_members, rebalance_now
from metadata.membership.outage_guard import OutageGuard
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, Heartbeat
from metadata.models.groups import MIN_SESSION_TIMEOUT_MS
from metadata.rules.membership import liveness

log = logging.getLogger(__name__)

_SELECT_SILENT = (
    "SELECT member.id, last_seen, session_timeout_ms, group_id"  # noqa: S608 - table names only
    f" FROM {Heartbeat._meta.db_table} JOIN {ConsumerGroupConsumer._meta.db_table} member"
    f" ON member.id = membership_id JOIN {ConsumerGroup._meta.db_table} in_group ON "
    "in_group.id = group_id"
    " WHERE last_seen < %s"
)
PASS_S = 1.0  # longest pass; a group that was begun is finished

_guard = OutageGuard()  # of this process


def observe_database() -> tuple[str, int]:
    """Note that the metadata database answers, and return the version of the metadata.

    The version comes with the same query. Every process that may expire members calls
    this several times a second. Raises MetadataUnavailable; then this process expires
    no member for a full session timeout.
    """
    return _guard.look().look.version


def expire_silent_members(*, guard: OutageGuard | None = None) -> int:
    """Expire members that were silent for the session timeout + 1 s, and rebalance their
    groups.

    Return the number of expired members. One pass takes about a second; the next pass
    does the rest. A group that fails does not delay the others. After an outage of the
    database, and after the start of the process, no member expires for a full session
    timeout.
    """
    outage_guard = guard or _guard
    watch = outage_guard.look()
    with reachable():
        silent_by_group = grouped(
            (group_id, member) for member, group_id in _find_silent_members(watch)
        )
    # In random order: a group that always fails must not use up every pass.
    group_ids = random.sample(list(silent_by_group), len(silent_by_group))
    deadline, expired_count = time.monotonic() + PASS_S, 0
    failure = None
    for group_id in group_ids:
        try:
            # The clock is observed before each group, so a long pass does not count as an
            # outage. After a real outage, the silence seen before it proves nothing.
            if (
                time.monotonic() > deadline
                or outage_guard.look().steady_since_s != watch.steady_since_s
            ):
                break
            if expired := _expire_in_group(
                group_id=group_id, members=silent_by_group[group_id]
            ):
                expired_count += expired
                rebalance_now(group_id)
        except MetadataUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return expired_count


def _find_silent_members(watch: liveness.Watch) -> list[tuple[int, int]]:
    """Return (member id, group id) of the members whose silence exceeds their session
    timeout.
    """
    # The query keeps to the shortest possible timeout, so it returns few rows; the exact
    # timeout of each group is checked below.
    silent_since = before(
        watch.look.now, seconds=MIN_SESSION_TIMEOUT_MS / 1000 + liveness.GRACE_S
    )
    rows = select(_SELECT_SILENT, [as_parameter(silent_since)])
    group_of = {member: group_id for member, _, _, group_id in rows}
    expired = liveness.find_expired(
        watch,
        [
            (member, to_utc(last_seen), timeout_ms)
            for member, last_seen, timeout_ms, _ in rows
        ],
    )
    return [(member, group_of[member]) for member in expired]


@transactional
def _expire_in_group(*, group_id: int, members: Sequence[int]) -> int:
    """Remove those of `members` that are still silent under the group's lock. Return their
    number.
    """
    try:
        group = lock_group_by_id(group_id)
    except NotFound:
        return 0
    now = database_now()
    # Noted before the commit: if the answer to the commit is lost, this process must not
    # claim that it heard nothing since an earlier time.
    contact.heard()
    # The row locks wait for heartbeats that are being recorded at this moment.
    rows = Heartbeat.objects.select_for_update().filter(
        pk__in=sorted(members), membership__group=group
    )
    expired = {
        row.pk: row.last_seen
        for row in rows.order_by("pk")
        if liveness.is_overdue(
            last_seen=row.last_seen, now=now, session_timeout_ms=group.session_timeout_ms
        )
    }
    if expired:
        names = group.members.filter(pk__in=sorted(expired)).values_list(
            "identity", flat=True
        )
        drop_members(group, expired, f"{', '.join(names)} expired")
        casual_groups.enable_no_consumer_alarm(group)
        log.warning("group %s: %d members expired", group.name, len(expired))
    return len(expired)
