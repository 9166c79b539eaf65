"""Java clients whose pulling threads have died, told to start again: passes of one process of all brokers.

A client that handles messages for long does not pull either, and would get them once more. So only those
are told that have handled all they were given. And a queue is watched for a while first: after an outage or a
stop its client is about to pull.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from messagestore.consume import node_owners
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable
from metadata.grouping import grouped
from metadata.membership import java_pulls
from metadata.membership.java_pulls import SilentQueue

log = logging.getLogger(__name__)

EVERY_S = 10.0
WATCHED_S = 25.0  # longer than a client needs to hear of a change, and than pulls need to be written down


@dataclass(slots=True)
class JavaStarts:
    """The queues that are silent, with the time.monotonic() of the first look at which they were."""

    since: dict[SilentQueue, float] = field(default_factory=dict)

    def run_once(self) -> int:
        """Tell clients to start again; return to how many that was told."""
        now = time.monotonic()
        silent = [one for one in java_pulls.silent() if not _is_stopped(one)]
        self.since = {one: self.since.get(one, now) for one in silent}
        dead = [one for one in silent if now - self.since[one] >= WATCHED_S]
        told = 0
        for consumer, mine in grouped((one.consumer, one) for one in dead).items():
            queues = _handled(mine)
            if queues and java_pulls.start_again(consumer=consumer, queues=queues):
                log.warning(
                    "group %d: %s pulls no more, so it is told to start again", consumer.group_id, queues
                )
                told += 1
        return told


def _is_stopped(one: SilentQueue) -> bool:
    known = snapshot.current()
    info = known.queues.get(one.queue)
    return info is None or known.stopped(one.consumer.group_id, info)


def _handled(silent: list[SilentQueue]) -> list[int]:
    """Return those of a consumer's queues that it owns on their nodes, and has nothing in hand of."""
    try:
        held = node_owners.held(consumer=silent[0].consumer, queues=[one.queue for one in silent])
    except NodeUnavailable:
        return []  # pulls fail there, so it has to wait anyway
    return sorted(one.queue for one in silent if one.queue in held and held[one.queue][1] >= one.given)
