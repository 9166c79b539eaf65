"""Store progress: commit the lowest unfinished offset of each queue, and release revoked
queues.

Commits are due every auto_commit_interval_ms. The next pull carries them; without a pull in
time they are sent alone (pull_commits.py). commit() and close() send theirs at once, because
they wait for the results. The last commits of revoked queues are sent at once, in a thread
and requests of their own, so that a rebalance does not wait for other queues or other nodes.
Two commits of a queue may arrive in any order, because the node keeps the highest offset of
an epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from catmq_client.errors import CatmqError, CommitFailed, OptionError, Unavailable
from catmq_client.http.backoff import Backoff
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.component import Component
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.pull_commits import Commit, PullCommits
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

# Limit of brokers per request.
MAX_OFFSETS = 1_000
# Interval of the check whether a revoked queue has run out of time.
CHECK_S = 0.25
# Longest sleep of a consumer that commits without an interval and has nothing to commit.
IDLE_S = 1.0


class CommitOutcome(NamedTuple):
    """Commits that were not stored, by cause."""

    lost_queues: list[OwnedQueue]  # the queue was fenced: another member owns it
    unavailable: list[Commit]  # the node cannot store the offset now; a repeat may help
    above_head: list[Commit]  # the offset is above the log end offset


class Committer(Component):
    """Commits for a consumer; `run` and `run_releases` are the bodies of its threads."""

    def __init__(self, *, transport: Transport, state: GroupState) -> None:
        super().__init__(transport=transport, state=state)
        self._commit_lock = threading.Lock()
        self._pull_commits = PullCommits(
            transport, interval_s=self._options.auto_commit_interval_ms / 1000
        )
        # Revoked queues whose last commit failed, perhaps because their node is slow. They
        # are retried in requests of their own, so that other releases do not wait for them.
        self._retried_releases: set[OwnedQueue] = set()

    def run(self) -> None:
        """Commit the finished offsets that no pull carries, until the consumer is closed."""
        state = self._state
        if not self._options.enable_auto_commit:
            return
        failures = FailureLog(log, "committing, which is repeated,")
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        while self._wait_for_turn():
            retry_in_s: float | None = None
            try:
                outcome = self.commit(self.due_commits())
                failures.ended()
                if outcome.unavailable or outcome.above_head:
                    retry_in_s = max(
                        backoff.next_s(), self._options.auto_commit_interval_ms / 1000
                    )
                else:
                    backoff.reset()
                    self._pull_commits.learn()
            except CatmqError as error:
                failures.failed(error)
                retry_in_s = backoff.next_s(error)
            except Exception:
                log.exception("internal error while committing; continuing")
                retry_in_s = backoff.next_s()
            with state.changed:
                if retry_in_s is None:
                    self._pull_commits.begin_interval()
                else:
                    self._pull_commits.send_alone()
            if retry_in_s is not None:
                state.wait(retry_in_s)

    def _wait_for_turn(self) -> bool:
        """Wait until commits are due that no pull has taken. Return False at the close."""
        state, pull_commits = self._state, self._pull_commits
        with state.changed:
            while not state.closed:
                wait_s = pull_commits.alone_in_s()
                if wait_s > 0:
                    # A pull that takes commits moves this time without waking the thread: it
                    # sleeps on after a look, instead of being woken for each pull.
                    state.changed.commits.wait(wait_s)
                elif self.due_commits():
                    return True
                else:
                    pull_commits.begin_interval()
                    if self._options.auto_commit_interval_ms == 0:
                        # The first finished message begins the time that it may wait.
                        state.wait_for_finished(IDLE_S)
                        pull_commits.wait_for_pull()
            return False

    def take_for_pull(self) -> list[Commit]:
        """Return the commits that the pull about to be sent carries, [] if none are due.

        Called under the lock. end_pull() or fail_pull() must follow for commits.
        """
        if not self._options.enable_auto_commit or not self._pull_commits.may_take():
            return []
        # Those of revoked queues are sent by run_releases(), in requests of their own.
        commits = [
            (owned, offset)
            for owned, offset in self.due_commits()
            if owned.revoked_until is None
        ][:MAX_OFFSETS]
        if commits:
            self._pull_commits.take(commits)
        return commits

    def end_pull(self, commits: list[Commit], results: Iterable[Mapping[str, Any]]) -> None:
        """Apply the results of the commits that a pull carried."""
        outcome = CommitOutcome([], [], [])
        states = {entry["queue"]: entry["state"] for entry in results}
        with self._state.changed:
            for owned, offset in commits:
                self._apply_result(owned, offset, states.get(owned.queue), outcome)
            are_stored = not outcome.unavailable and not outcome.above_head
            self._pull_commits.end(commits, are_stored=are_stored)
            if not are_stored:
                self._state.changed.commits.notify_all()

    def fail_pull(self, commits: list[Commit], error: CatmqError) -> bool:
        """Note that a pull with commits failed: they are sent alone.

        Return True if the pull was refused for its commits alone, by a broker of an earlier
        release: a pull without them may follow at once.
        """
        with self._state.changed:
            self._pull_commits.end(commits, are_stored=False)
            self._state.changed.commits.notify_all()
            return self._pull_commits.was_refused(error)

    def run_releases(self) -> None:
        """Release revoked queues as soon as nothing of them is at work, or their time is
        over.
        """
        state = self._state
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        # A new release ends the wait at once. CHECK_S only finds the queues whose time has
        # run out.
        while state.wait(CHECK_S, self._has_new_release):
            try:
                self.release()
                if not self._retried_releases:
                    backoff.reset()
                    continue
            except Exception:
                log.exception("internal error while releasing queues; continuing")
            state.wait(backoff.next_s(), self._has_new_release)

    def release(self) -> None:
        """Commit and release the revoked queues that may go, new releases apart from failed
        releases.
        """
        with self._state.changed:
            releasable = [
                owned for owned in self._state.queues.values() if self._may_release(owned)
            ]
            self._release_stored(releasable, was_tried=False)
            unreleased = {owned for owned in releasable if not owned.lost}
            self._retried_releases &= unreleased
        if new_releases := unreleased - self._retried_releases:
            self._commit_and_release(new_releases)
        if self._retried_releases and not self._has_new_release():
            self._commit_and_release(set(self._retried_releases))

    def _commit_and_release(self, batch: set[OwnedQueue]) -> None:
        """Commit and release queues together.

        Release those that are stored, or whose time is over.
        """
        with self._state.changed:
            commits = [(owned, owned.committable()) for owned in batch]
        try:
            self._send_commits(commits)
        except CatmqError as error:
            log.warning("the last commit of revoked queues failed: %s", error)
        with self._state.changed:
            self._release_stored(batch, was_tried=True)
            self._retried_releases = (self._retried_releases - batch) | {
                owned for owned in batch if not owned.lost
            }

    def _release_stored(self, batch: Iterable[OwnedQueue], *, was_tried: bool) -> None:
        """Release the queues with nothing left to commit.

        After a try, also those out of time.
        """
        for owned in batch:
            has_nothing_to_commit = (
                not self._options.enable_auto_commit
                or not owned.acquired
                or owned.committable() <= owned.committed
            )
            if self._may_release(owned) and (
                has_nothing_to_commit or (was_tried and _is_overdue(owned))
            ):
                self._state.release(owned)

    def due_commits(self) -> list[Commit]:
        """Return the commits due: finished offsets that are not committed, of all queues."""
        with self._state.changed:
            return [
                (owned, offset)
                for owned in self._state.queues.values()
                if owned.acquired and (offset := owned.committable()) > owned.committed
            ]

    def commits_at(self, offsets: Mapping[int, int]) -> list[Commit]:
        """Return the commits of offsets that the application names, by queue.

        Raises CommitFailed if a queue is not owned, and Unavailable if a commit would pass
        a failed message that is not stored for its retry yet.
        """
        with self._state.changed:
            missing = sorted(set(offsets) - set(self._state.queues))
            if missing:
                raise CommitFailed(f"queue {missing[0]} is not owned by this consumer")
            commits = [
                (self._state.queues[queue], offset) for queue, offset in offsets.items()
            ]
            blocked = [
                commit
                for commit in commits
                if any(
                    failed_offset < commit[1]
                    for failed_offset in commit[0].unstored_failures
                )
            ]
            if blocked:
                raise Unavailable(
                    f"a failed message is not stored for its retry yet: {_describe(blocked)}"
                )
            return commits

    def commit(self, commits: list[Commit]) -> CommitOutcome:
        """Store the offsets. Return those that were not stored."""
        if not commits:
            return CommitOutcome([], [], [])
        with self._commit_lock:
            return self._send_commits(commits)

    def _send_commits(self, commits: list[Commit]) -> CommitOutcome:
        """Store the offsets, in as many requests as the limit of brokers needs."""
        outcome = CommitOutcome([], [], [])
        for start in range(0, len(commits), MAX_OFFSETS):
            consumer_id = self._state.consumer_id
            batch = commits[start : start + MAX_OFFSETS]
            # An offset that an earlier request has stored counts as stored, even if the
            # queue was lost since.
            outcome.lost_queues.extend(
                owned
                for owned, offset in batch
                if (owned.lost and offset > owned.committed)
                or (not owned.lost and consumer_id is None)
            )
            batch = [(owned, offset) for owned, offset in batch if not owned.lost]
            if consumer_id is None or not batch:
                continue
            body = {"offsets": commit_entries(batch)}
            response = self._post("consumers", consumer_id, "commit", body=body)
            states = {entry["queue"]: entry["state"] for entry in response["results"]}
            with self._state.changed:
                self._state.note_generation(response.get("generation", 0))
                for owned, offset in batch:
                    self._apply_result(owned, offset, states.get(owned.queue), outcome)
        return outcome

    def commit_until(self, commits: list[Commit], *, within_s: float) -> list[OwnedQueue]:
        """Store the offsets, trying for `within_s` seconds.

        Return the queues that were lost.

        Raises Unavailable if some could not be stored in time, and OptionError for an
        offset above the log end offset.
        """
        give_up_at = time.monotonic() + within_s
        backoff = Backoff(base_ms=self._options.retry_backoff_ms, max_ms=2_000)
        lost_queues: list[OwnedQueue] = []
        while True:
            try:
                outcome = self.commit(commits)
                lost_queues += outcome.lost_queues
                if outcome.above_head:
                    raise OptionError(
                        "not committed, above the log end offset: "
                        f"{_describe(outcome.above_head)}"
                    )
                if not outcome.unavailable:
                    return lost_queues
                commits = outcome.unavailable
                raise Unavailable(
                    f"not committed now: {_describe(commits)}", code="node_unavailable"
                )
            except CatmqError as error:
                delay_s = backoff.next_s(error)
                if (
                    not (error.retriable or error.outcome_unknown)
                    or time.monotonic() + delay_s > give_up_at
                ):
                    # The caller does not learn of the lost queues now, so the next commit()
                    # reports them.
                    with self._state.changed:
                        self._state.unannounced_losses.update(
                            {owned.queue: owned for owned in lost_queues}
                        )
                    raise
                self._state.wait(delay_s)

    def _apply_result(
        self, owned: OwnedQueue, offset: int, result: str | None, outcome: CommitOutcome
    ) -> None:
        if result == "ok" or (owned.lost and offset <= owned.committed):
            owned.committed = max(owned.committed, offset)
        elif result == "fenced":
            # The queue may be lost since the request was sent.
            if not owned.lost:
                log.warning(
                    "%s: not committed, another member owns it (epoch %d is fenced)",
                    owned,
                    owned.epoch,
                )
                self._state.lose(owned)
                # The heartbeat brings the assignment that the node already knows of.
                self._state.want_heartbeat()
            outcome.lost_queues.append(owned)
        elif result == "out_of_range":
            log.error(
                "%s: offset %d not committed: it is above the log end offset", owned, offset
            )
            outcome.above_head.append((owned, offset))
        else:
            log.warning("%s: not committed (%s); will retry", owned, result)
            outcome.unavailable.append((owned, offset))

    def _has_new_release(self) -> bool:
        """Return True if a revoked queue may be released that has not failed before."""
        return any(
            self._may_release(owned) and owned not in self._retried_releases
            for owned in self._state.queues.values()
        )

    def _may_release(self, owned: OwnedQueue) -> bool:
        """Return True if a queue is revoked and idle, or its time is over."""
        if owned.revoked_until is None or owned.lost:
            return False
        return self._state.is_idle(owned) or _is_overdue(owned)


def _is_overdue(owned: OwnedQueue) -> bool:
    return owned.revoked_until is not None and time.monotonic() > owned.revoked_until


def commit_entries(commits: Iterable[Commit]) -> list[dict[str, int]]:
    """Return commits as requests have them."""
    return [
        {"queue": owned.queue, "epoch": owned.epoch, "offset": offset}
        for owned, offset in commits
    ]


def _describe(commits: list[Commit]) -> str:
    return ", ".join(f"{owned} offset {offset}" for owned, offset in commits)
