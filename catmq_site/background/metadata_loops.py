"""The loops of a worker that follow metadata: the first asks the database for its state,
the second loads changes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from messagestore.heads.heads import board
from messagestore.topology import process_caches
from metadata.cache import snapshot
from metadata.cache.snapshot_types import Snapshot
from metadata.config import config
from metadata.limits.bulkhead import bulkhead
from metadata.membership import expiry

# At most 0.25 s, so that an outage is noticed soon.
CHECK_EVERY_S = min(0.25, config.snapshot_interval_ms / 1000)
# Between two refreshes without a known change.
REFRESH_EVERY_S = max(1.0, config.snapshot_interval_ms / 1000)


def check_metadata() -> None:
    """Ask the metadata database for its state, with a single statement for three purposes.

    An answer lets refused calls through again; the database's clock shows whether silent
    members may have expired; and the number of the last change shows whether the snapshot
    is current.
    """

    def observe_database() -> None:
        # The time before the query: the answer proves nothing about later changes.
        asked_at = time.monotonic()
        snapshot.confirm(expiry.observe_database(), at=asked_at)

    bulkhead.check_database(observe_database)


@dataclass(slots=True)
class SnapshotLoop:
    """Keeps the snapshot current, wakes the pulls of changed groups, and drops caches of
    deleted queues.
    """

    last_snapshot: Snapshot | None = None

    def wait_and_refresh(self) -> None:
        """Wait until something changed, REFRESH_EVERY_S at most, and load it."""
        snapshot.await_news(REFRESH_EVERY_S)
        self.refresh()

    def refresh(self) -> None:
        """Load what changed, and wake each group whose generation, state or subscriptions
        changed.
        """
        snapshot.refresh()
        # The loop compares with its own last snapshot: other threads refresh it as well.
        before, self.last_snapshot = self.last_snapshot, snapshot.current()
        if before is None or before.version == self.last_snapshot.version:
            return
        for group_id in changed_groups(before, self.last_snapshot):
            board.wake_group(group_id)
        if before.queues.keys() - self.last_snapshot.queues.keys():
            process_caches.evict_except(self.last_snapshot.queues)


def changed_groups(before: Snapshot, after: Snapshot) -> set[int]:
    """Return the ids of groups that changed, or that have a changed subscription: their
    waiting pulls must notice.
    """
    groups = {key for key in before.groups if before.groups[key] != after.groups.get(key)}
    old, new = before.subscriptions, after.subscriptions
    changed_subscriptions = [
        old.get(key) or new[key] for key in {*old, *new} if old.get(key) != new.get(key)
    ]
    return groups | {subscription.group_id for subscription in changed_subscriptions}
