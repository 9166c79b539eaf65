"""The loops of a worker that follow metadata: one looks at the database, the other loads
what changed.
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

# at least so often for outages
LOOK_EVERY_S = min(0.25, config.snapshot_interval_ms / 1000)
# between two refreshes that nobody asked for
UNTOLD_S = max(1.0, config.snapshot_interval_ms / 1000)


def look_at_metadata() -> None:
    """Ask the metadata database for its state, in one statement for three ends.

    An answer lets calls through that were refused; its clock tells whether silent members
    may be dead; and the number of the last change tells whether the snapshot is current.
    """
    bulkhead.check_database(_ask)


def _ask() -> None:
    begun = time.monotonic()
    snapshot.confirm(expiry.observe_database(), at=begun)


@dataclass(slots=True)
class SnapshotLoop:
    """Keeps the snapshot fresh, wakes the pulls of groups that changed and forgets queues
    that are gone.
    """

    seen: Snapshot | None = None

    def follow(self) -> None:
        """Wait until something changed, or for a moment, and load it."""
        snapshot.await_news(UNTOLD_S)
        self.run_once()

    def run_once(self) -> None:
        """Load what changed; a group whose generation, state or subscriptions moved is
        woken.
        """
        snapshot.refresh()
        before, self.seen = self.seen, snapshot.current()
        if before is None or before.version == self.seen.version:
            return
        for group_id in changed_groups(before, self.seen):
            board.wake_group(group_id)
        if before.queues.keys() - self.seen.queues.keys():
            process_caches.evict_except(self.seen.queues)


def changed_groups(before: Snapshot, after: Snapshot) -> set[int]:
    """The groups that a waiting pull must hear of: themselves or a subscription of theirs
    changed.
    """
    groups = {one for one in before.groups if before.groups[one] != after.groups.get(one)}
    old, new = before.subscriptions, after.subscriptions
    moved = [
        old.get(one) or new[one] for one in {*old, *new} if old.get(one) != new.get(one)
    ]
    return groups | {subscription.group_id for subscription in moved}
