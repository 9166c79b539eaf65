"""Stores progress: the lowest unfinished offset of each queue, and releases revoked queues after it.

Commits go out every auto_commit_interval_ms, before a revoked queue is released, when commit() is
called and on close; one at a time, so the committed offset of an epoch never falls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from catmq_client.backoff import Backoff
from catmq_client.errors import CatmqError, CommitFailed, OptionError, Unavailable
from catmq_client.owned import OwnedQueue
from catmq_client.state import GroupState
from catmq_client.transport import Transport, api_path

log = logging.getLogger("catmq.consumer")

Commit = tuple[OwnedQueue, int]


class Fates(NamedTuple):
    """What became of commits that were not stored."""

    gone: list[OwnedQueue]  # the queue had gone to another member
    unavailable: list[Commit]  # its node cannot store it now
    above_head: list[Commit]  # there is no such offset


class Committer:
    """Commits for one consumer; `run` is its thread."""

    def __init__(self, *, transport: Transport, state: GroupState) -> None:
        self._transport = transport
        self._state = state
        self._options = state.options
        self._one_at_a_time = threading.Lock()

    def run(self) -> None:
        """Commits at intervals, and releases revoked queues, until the consumer closes."""
        state = self._state
        interval_s = self._options.auto_commit_interval_ms / 1000
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        while state.wait(interval_s, self._has_released):
            try:
                self.run_once()
                if self._has_released():
                    # A node that cannot store the last commit now: no reason to ask it without a pause.
                    state.wait(backoff.next_s())
                else:
                    backoff.reset()
            except CatmqError as error:
                log.warning("commit failed, it will be repeated: %s", error)
                state.wait(backoff.next_s(error))
            except Exception:
                log.exception("committing met a bug; it goes on")
                state.wait(backoff.next_s())

    def run_once(self) -> None:
        """Commits what is done, then releases what is idle or has run out of time."""
        state = self._state
        with state.changed:
            idle = [o for o in state.queues.values() if self._may_go(o)]
        try:
            if self._options.enable_auto_commit:
                self.commit(self.due())
        finally:
            with state.changed:
                for owned in idle:
                    if owned.revoked_until is not None and not owned.lost and self._is_settled(owned):
                        state.release(owned)

    def due(self) -> list[Commit]:
        """What is done and not yet committed, of all queues."""
        with self._state.changed:
            pairs = [(o, o.committable()) for o in self._state.queues.values() if o.acquired]
        return [(owned, offset) for owned, offset in pairs if offset > owned.committed]

    def explicit(self, offsets: Mapping[int, int]) -> list[Commit]:
        """Commits that the application names, by queue."""
        with self._state.changed:
            missing = sorted(set(offsets) - set(self._state.queues))
            if missing:
                raise CommitFailed(f"queue {missing[0]} is not owned by this consumer")
            return [(self._state.queues[queue], offset) for queue, offset in offsets.items()]

    def commit(self, commits: list[Commit]) -> Fates:
        """Stores the offsets; those that were not stored."""
        if not commits:
            return Fates([], [], [])
        with self._one_at_a_time:
            consumer_id = self._state.consumer_id
            if consumer_id is None:
                return Fates([owned for owned, _ in commits], [], [])
            fates = Fates([owned for owned, _ in commits if owned.lost], [], [])
            commits = [(owned, offset) for owned, offset in commits if not owned.lost]
            if not commits:
                return fates
            answer = self._transport.request(
                "POST",
                api_path("consumers", consumer_id, "commit"),
                body={"offsets": [{"queue": o.queue, "epoch": o.epoch, "offset": n} for o, n in commits]},
                timeout_s=self._options.request_timeout_ms / 1000,
            )
            states = {item["queue"]: item["state"] for item in answer["results"]}
            with self._state.changed:
                for owned, offset in commits:
                    self._after_commit(owned, offset, states.get(owned.queue), fates)
            return fates

    def commit_until(self, commits: list[Commit], *, within_s: float) -> list[OwnedQueue]:
        """Stores the offsets, trying for `within_s` seconds; the queues that had gone to others.

        Raises Unavailable when some could not be stored in time, OptionError for an offset above the head.
        """
        give_up_at = time.monotonic() + within_s
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        gone: list[OwnedQueue] = []
        while True:
            try:
                fates = self.commit(commits)
                gone += fates.gone
                self._check_above_head(fates.above_head)
                if not fates.unavailable:
                    return gone
                commits = fates.unavailable
                raise Unavailable(f"not committed now: {_named(commits)}", code="node_unavailable")
            except CatmqError as error:
                delay_s = backoff.next_s(error)
                if not (error.retriable or error.outcome_unknown) or time.monotonic() + delay_s > give_up_at:
                    with self._state.changed:
                        self._state.unreported.update({owned.queue: owned for owned in gone})
                    raise
                self._state.wait(delay_s)

    def _check_above_head(self, commits: list[Commit]) -> None:
        if commits:
            raise OptionError(f"not committed, above the last message: {_named(commits)}")

    def _after_commit(self, owned: OwnedQueue, offset: int, answered: str | None, fates: Fates) -> None:
        """Remembers a stored offset, or what became of it."""
        where = f"{owned.topic} queue {owned.queue}"
        if answered == "ok":
            owned.committed = max(owned.committed, offset)
        elif answered == "fenced":
            log.warning("%s: fenced in epoch %d at commit", where, owned.epoch)
            self._state.lose(owned)
            self._state.want_heartbeat()
            fates.gone.append(owned)
        elif answered == "out_of_range":
            log.error("%s: commit of offset %d, above the last message", where, offset)
            fates.above_head.append((owned, offset))
        else:
            log.warning("%s: commit answered %s; it will be repeated", where, answered)
            fates.unavailable.append((owned, offset))

    def _has_released(self) -> bool:
        return any(self._may_go(owned) for owned in self._state.queues.values())

    def _may_go(self, owned: OwnedQueue) -> bool:
        if owned.revoked_until is None:
            return False
        return self._state.is_idle(owned) or time.monotonic() > owned.revoked_until

    def _is_settled(self, owned: OwnedQueue) -> bool:
        """Whether there is nothing left to commit, or no time left to do it."""
        if not self._options.enable_auto_commit or not owned.acquired:
            return True
        return owned.committable() <= owned.committed or time.monotonic() > (owned.revoked_until or 0.0)


def _named(commits: list[Commit]) -> str:
    return ", ".join(f"{owned.topic} queue {owned.queue} offset {offset}" for owned, offset in commits)
