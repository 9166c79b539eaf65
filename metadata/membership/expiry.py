"""Expiry of members: who was silent for longer than the session timeout leaves the group."""

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

_SILENT = (
    "SELECT member.id, last_seen, session_timeout_ms, group_id"  # noqa: S608 - no value of anybody's
    f" FROM {Heartbeat._meta.db_table} JOIN {ConsumerGroupConsumer._meta.db_table} member"
    f" ON member.id = membership_id JOIN {ConsumerGroup._meta.db_table} in_group ON "
    "in_group.id = group_id"
    " WHERE last_seen < %s"
)
PASS_S = 1.0  # of expiring, but for the last group

_guard = OutageGuard()  # of this process


def observe_database() -> tuple[str, int]:
    """Look at the database's clock; return the version of the metadata, which comes with
    it.

    Every process that may ever expire members looks several times a second. Raises
    MetadataUnavailable, and then this process expires nobody for a full session timeout.
    """
    return _guard.look().look.version


def expire_silent_members(*, guard: OutageGuard | None = None) -> int:
    """Expire members that were silent for session timeout + 1 s, and rebalance their
    groups; how many.

    One pass of about a second, to be made every second; the rest is left to the next one,
    and a group that fails keeps none of the others waiting. After an outage of the
    database, and for the first time in a process, nobody expires for a full session timeout
    (rules.liveness).
    """
    watcher = guard or _guard
    watch = watcher.look()
    with reachable():
        by_group = grouped(
            (group_id, member) for member, group_id in _find_silent_members(watch)
        )
    # what fails must not be first in every pass
    groups = random.sample(list(by_group), len(by_group))
    end, count = time.monotonic() + PASS_S, 0
    failure = None
    for group_id in groups:
        try:
            # Looking on, a long pass is no outage; and what was silent before one proves
            # nothing after it.
            if (
                time.monotonic() > end
                or watcher.look().steady_since_s != watch.steady_since_s
            ):
                break
            if dead := _expire_in_group(group_id=group_id, members=by_group[group_id]):
                count += dead
                rebalance_now(group_id)
        except MetadataUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return count


def _find_silent_members(watch: liveness.Watch) -> list[tuple[int, int]]:
    """(member, group) of those that seem dead."""
    # Nobody is dead sooner, and few are this silent.
    since = before(watch.look.now, seconds=MIN_SESSION_TIMEOUT_MS / 1000 + liveness.GRACE_S)
    rows = select(_SILENT, [as_parameter(since)])
    groups = {member: group_id for member, _, _, group_id in rows}
    dead = liveness.find_expired(
        watch, [(member, to_utc(seen), timeout_ms) for member, seen, timeout_ms, _ in rows]
    )
    return [(member, groups[member]) for member in dead]


@transactional
def _expire_in_group(*, group_id: int, members: Sequence[int]) -> int:
    """Drop those of `members` that are still silent, judged again under the group's lock;
    return how many.
    """
    try:
        group = lock_group_by_id(group_id)
    except NotFound:
        return 0
    now = database_now()
    # now: if the commit is lost, nobody may say that nothing was heard since before this
    contact.heard()
    rows = Heartbeat.objects.select_for_update().filter(
        pk__in=sorted(members), membership__group=group
    )
    dead = {
        row.pk: row.last_seen
        for row in rows.order_by("pk")
        if liveness.is_overdue(
            last_seen=row.last_seen, now=now, session_timeout_ms=group.session_timeout_ms
        )
    }
    if dead:
        names = group.members.filter(pk__in=sorted(dead)).values_list("identity", flat=True)
        drop_members(group, dead, f"{', '.join(names)} expired")
        casual_groups.enable_no_consumer_alarm(group)
        log.warning("group %s: %d members expired", group.name, len(dead))
    return len(dead)
