"""Stores progress: the lowest unfinished offset of each queue, and releases revoked queues
after it.

Commits go out every auto_commit_interval_ms, when commit() is called and on close; and
those of revoked queues at once, in a thread and requests of their own, so that a move waits
for no other queue and no other node. The node keeps the highest offset of an epoch, so
their order does not matter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from catmq_client.errors import CatmqError, CommitFailed, OptionError, Unavailable
from catmq_client.http.backoff import Backoff
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.part import Part
from catmq_client.reading.state import GroupState

log = logging.getLogger("catmq.consumer")

# What brokers take in one request.
MOST_OFFSETS = 1_000
# How often it is looked whether a revoked queue has run out of time.
LATE_S = 0.25

Commit = tuple[OwnedQueue, int]


class Fates(NamedTuple):
    """Commits that were not stored, by cause."""

    gone: list[OwnedQueue]  # the queue had gone to another member
    unavailable: list[Commit]  # its node cannot store it now
    above_head: list[Commit]  # there is no such offset


class Committer(Part):
    """Commits for one consumer; `run` and `run_releases` are its threads."""

    def __init__(self, *, transport: Transport, state: GroupState) -> None:
        super().__init__(transport=transport, state=state)
        self._one_at_a_time = threading.Lock()
        # Revoked queues whose last commit failed, perhaps on a slow node: others do not
        # wait for them.
        self._failed: set[OwnedQueue] = set()

    def run(self) -> None:
        state = self._state
        interval_s = self._options.auto_commit_interval_ms / 1000
        failures = FailureLog(log, "committing, which is repeated,")
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        while state.wait(interval_s):
            if not self._options.enable_auto_commit:
                continue
            try:
                self.commit(self.due())
                backoff.reset()
                failures.ended()
            except CatmqError as error:
                failures.failed(error)
                state.wait(backoff.next_s(error))
            except Exception:
                log.exception("internal error while committing; continuing")
                state.wait(backoff.next_s())

    def run_releases(self) -> None:
        state = self._state
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        while state.wait(LATE_S, self._has_new_release):
            try:
                self.release()
                if not self._failed:
                    backoff.reset()
                    continue
            except Exception:
                log.exception("internal error while releasing queues; continuing")
            state.wait(backoff.next_s(), self._has_new_release)

    def release(self) -> None:
        with self._state.changed:
            going = [owned for owned in self._state.queues.values() if self._may_go(owned)]
            self._let_go(going, tried=False)
            left = {owned for owned in going if not owned.lost}
            self._failed &= left
        if new := left - self._failed:
            self._release(new)
        if self._failed and not self._has_new_release():
            self._release(set(self._failed))

    def _release(self, batch: set[OwnedQueue]) -> None:
        """One commit of these queues, and the release of those that it stored, or that are
        late.
        """
        with self._state.changed:
            commits = [(owned, owned.committable()) for owned in batch]
        try:
            self._store(commits)
        except CatmqError as error:
            log.warning("the last commit of revoked queues failed: %s", error)
        with self._state.changed:
            self._let_go(batch, tried=True)
            self._failed = (self._failed - batch) | {
                owned for owned in batch if not owned.lost
            }

    def _let_go(self, batch: Iterable[OwnedQueue], *, tried: bool) -> None:
        """Release those that have nothing left to commit or, after a last try, no time
        left.
        """
        for owned in batch:
            if self._may_go(owned) and (
                self._is_stored(owned) or (tried and _is_late(owned))
            ):
                self._state.release(owned)

    def due(self) -> list[Commit]:
        """Return the commits due: offsets done and not yet committed, of all queues."""
        with self._state.changed:
            pairs = [
                (o, o.committable()) for o in self._state.queues.values() if o.acquired
            ]
        return [(owned, offset) for owned, offset in pairs if offset > owned.committed]

    def explicit(self, offsets: Mapping[int, int]) -> list[Commit]:
        """Commits that the application names, by queue."""
        with self._state.changed:
            missing = sorted(set(offsets) - set(self._state.queues))
            if missing:
                raise CommitFailed(f"queue {missing[0]} is not owned by this consumer")
            commits = [
                (self._state.queues[queue], offset) for queue, offset in offsets.items()
            ]
            held = [
                one
                for one in commits
                if any(failed < one[1] for failed in one[0].reporting)
            ]
            if held:
                raise Unavailable(
                    f"a failed message is not stored for its retry yet: {_named(held)}"
                )
            return commits

    def commit(self, commits: list[Commit]) -> Fates:
        """Store the offsets; return those that were not stored."""
        if not commits:
            return Fates([], [], [])
        with self._one_at_a_time:
            return self._store(commits)

    def _store(self, commits: list[Commit]) -> Fates:
        fates = Fates([], [], [])
        for first in range(0, len(commits), MOST_OFFSETS):
            self._store_part(commits[first : first + MOST_OFFSETS], fates)
        return fates

    def _store_part(self, commits: list[Commit], fates: Fates) -> None:
        """One request's worth. What another request stored is stored, even if the queue has
        gone since.
        """
        consumer_id = self._state.consumer_id
        commits = [
            (owned, offset)
            for owned, offset in commits
            if offset > owned.committed or not owned.lost
        ]
        fates.gone.extend(
            owned for owned, _ in commits if owned.lost or consumer_id is None
        )
        commits = [(owned, offset) for owned, offset in commits if not owned.lost]
        if consumer_id is None or not commits:
            return
        body = {
            "offsets": [
                {"queue": o.queue, "epoch": o.epoch, "offset": n} for o, n in commits
            ]
        }
        answer = self._post("consumers", consumer_id, "commit", body=body)
        states = {item["queue"]: item["state"] for item in answer["results"]}
        with self._state.changed:
            self._state.hear(answer.get("generation", 0))
            for owned, offset in commits:
                self._after_commit(owned, offset, states.get(owned.queue), fates)

    def commit_until(self, commits: list[Commit], *, within_s: float) -> list[OwnedQueue]:
        """Store the offsets, trying for `within_s` seconds; return the queues that had gone
        to others.

        Raises Unavailable when some could not be stored in time, OptionError for an offset
        above the head.
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
                raise Unavailable(
                    f"not committed now: {_named(commits)}", code="node_unavailable"
                )
            except CatmqError as error:
                delay_s = backoff.next_s(error)
                if (
                    not (error.retriable or error.outcome_unknown)
                    or time.monotonic() + delay_s > give_up_at
                ):
                    with self._state.changed:
                        self._state.unreported.update(
                            {owned.queue: owned for owned in gone}
                        )
                    raise
                self._state.wait(delay_s)

    def _check_above_head(self, commits: list[Commit]) -> None:
        if commits:
            raise OptionError(f"not committed, above the log end offset: {_named(commits)}")

    def _after_commit(
        self, owned: OwnedQueue, offset: int, answered: str | None, fates: Fates
    ) -> None:
        """Remember a stored offset, or what became of it."""
        if answered == "ok" or (owned.lost and offset <= owned.committed):
            owned.committed = max(owned.committed, offset)
        elif answered == "fenced":
            log.warning(
                "%s: not committed, another member owns it (epoch %d is fenced)",
                owned,
                owned.epoch,
            )
            self._state.lose(owned)
            self._state.want_heartbeat()
            fates.gone.append(owned)
        elif answered == "out_of_range":
            log.error(
                "%s: offset %d not committed: it is above the log end offset", owned, offset
            )
            fates.above_head.append((owned, offset))
        else:
            log.warning("%s: not committed (%s); will retry", owned, answered)
            fates.unavailable.append((owned, offset))

    def _has_new_release(self) -> bool:
        return any(
            self._may_go(o) and o not in self._failed for o in self._state.queues.values()
        )

    def _may_go(self, owned: OwnedQueue) -> bool:
        if owned.revoked_until is None or owned.lost:
            return False
        return self._state.is_idle(owned) or _is_late(owned)

    def _is_stored(self, owned: OwnedQueue) -> bool:
        if not self._options.enable_auto_commit or not owned.acquired:
            return True
        return owned.committable() <= owned.committed


def _is_late(owned: OwnedQueue) -> bool:
    return owned.revoked_until is not None and time.monotonic() > owned.revoked_until


def _named(commits: list[Commit]) -> str:
    return ", ".join(f"{owned} offset {offset}" for owned, offset in commits)
