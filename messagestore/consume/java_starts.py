"""Restart of Java clients whose pulling threads have died.

A single process of all brokers runs the passes. A client that handles a message for long does
not pull either, and a restart would deliver that message again. So only clients that have
committed all messages they were given are restarted. A queue must also be silent for
WATCHED_S first: after an outage or a stop its client is about to pull.
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
# Longer than a client needs to learn of a change, and longer than java_pulls.FLUSH_S takes
# to record a pull.
WATCHED_S = 25.0


@dataclass(slots=True)
class JavaStarts:
    """Silent queues, with the time.monotonic() of the first pass that found each of them
    silent.
    """

    since: dict[SilentQueue, float] = field(default_factory=dict)

    def run_once(self) -> int:
        """Restart clients that stopped pulling; return the number of restarted clients."""
        now = time.monotonic()
        current = snapshot.current()
        # A queue of a paused group is silent on purpose.
        silent_queues = [
            silent
            for silent in java_pulls.find_silent_queues()
            if (info := current.queues.get(silent.queue)) is not None
            and not current.is_stopped(silent.consumer.group_id, info)
        ]
        # Rebuilt at each pass, so a queue that was pulled meanwhile is watched from the
        # start again.
        self.since = {queue: self.since.get(queue, now) for queue in silent_queues}
        dead_queues = [
            queue for queue in silent_queues if now - self.since[queue] >= WATCHED_S
        ]
        restarted_clients = 0
        for consumer, silent in grouped(
            (queue.consumer, queue) for queue in dead_queues
        ).items():
            try:
                held_queues = node_owners.held(
                    consumer=consumer, queues=[queue.queue for queue in silent]
                )
            except NodeUnavailable:
                continue  # pulls of these queues fail as well, so a restart would not help
            # Queues that the consumer owns, and has read and committed to the end.
            handled_queues = sorted(
                queue.queue
                for queue in silent
                if queue.queue in held_queues
                and held_queues[queue.queue][1] >= queue.delivered_end
            )
            if handled_queues and java_pulls.order_restart(
                consumer=consumer, queues=handled_queues
            ):
                log.warning(
                    "group %d: %s pulls no more, so it is told to start again",
                    consumer.group_id,
                    handled_queues,
                )
                restarted_clients += 1
        return restarted_clients
