"""When due commits go with a pull, and when they are sent alone.

A pull may carry commits (the field `commit` of its body). The broker stores them before it
reads and before it waits, so a consumer that pulls all the time needs no requests for
commits. Each interval goes like this:

    due_at      a pull that is sent from now on takes what is finished
    alone_at    TAKE_S later: no pull came, so the commits are sent alone

A pull that took commits moves `alone_at` to ANSWER_S from now. Usually its answer comes
within milliseconds and begins the next interval. A pull that waits for messages is answered
late, although its commits are stored. They are then sent once more, to learn their results.

Brokers of an earlier release refuse the field. So no pull has it before `GET /api/v1` of a
broker has named the feature, and none for ASK_AGAIN_S after a refusal: during an upgrade,
brokers of both releases answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from catmq_client.errors import CatmqError, InvalidRequest
from catmq_client.http.transport import Transport
from catmq_client.reading.owned import OwnedQueue

# Field of a pull, in request and answer.
FIELD = "commit"
# Name in the features of `GET /api/v1`.
FEATURE = "pull_commit"
ABOUT_PATH = "/api/v1"
# How long due commits wait for a pull that carries them, s.
TAKE_S = 0.02
# How long the results of commits that a pull carries are waited for, s.
ANSWER_S = 1.0
# Pause between questions after a broker that lacks the feature, s.
ASK_AGAIN_S = 60.0

Commit = tuple[OwnedQueue, int]


class PullCommits:
    """The times of the commits of a consumer, and the commits that a pull carries now.

    Not locked: every call but learn() is made under the lock of the group state.
    """

    def __init__(self, transport: Transport, *, interval_s: float) -> None:
        self._transport = transport
        self._interval_s = interval_s
        self._is_supported = False
        # Monotonic times; see the module.
        self._ask_at = 0.0
        self._due_at = self._alone_at = 0.0
        self._carried: Sequence[Commit] = ()
        # Commits failed: they are repeated alone, with a growing delay, and pulls go on.
        self._must_go_alone = False
        self.begin_interval()

    def begin_interval(self) -> None:
        """Note that all due commits are stored, or that none is due."""
        self._carried = ()
        self._must_go_alone = False
        self._due_at = time.monotonic() + self._interval_s
        # Without an interval, the time between two commits, whoever carries them.
        may_ride = self._is_supported or not self._interval_s
        self._alone_at = self._due_at + (TAKE_S if may_ride else 0.0)

    def wait_for_pull(self) -> None:
        """Note that a message was finished: the next pull may take its commit, unless one
        has taken it already.
        """
        self._alone_at = max(self._alone_at, time.monotonic() + TAKE_S)

    def alone_in_s(self) -> float:
        """Return the seconds until due commits are sent alone, 0 or less if that is now."""
        return self._alone_at - time.monotonic()

    def may_take(self) -> bool:
        """Return True if a pull that is sent now may carry the due commits."""
        return (
            self._is_supported
            and not self._must_go_alone
            and not self._carried
            and time.monotonic() >= self._due_at
        )

    def take(self, commits: Sequence[Commit]) -> None:
        """Note that a pull carries these commits."""
        self._carried = commits
        self._alone_at = time.monotonic() + ANSWER_S

    def end(self, commits: Sequence[Commit], *, are_stored: bool) -> None:
        """Note the end of the pull that carried these commits."""
        # A late answer: the commits were sent alone since, and another pull may carry others.
        if self._carried is not commits:
            return
        if are_stored:
            self.begin_interval()
        else:
            self.send_alone()

    def send_alone(self) -> None:
        """Note that commits failed. They are repeated alone until that succeeds."""
        self._carried = ()
        self._must_go_alone = True
        self._alone_at = time.monotonic()

    def was_refused(self, error: CatmqError) -> bool:
        """Return True if a pull was refused for its commits alone; carry none for a while
        then.
        """
        fields = {wrong.field for wrong in error.errors}
        if not isinstance(error, InvalidRequest) or fields != {FIELD}:
            return False
        self._is_supported = False
        self._ask_at = time.monotonic() + ASK_AGAIN_S
        return True

    def learn(self) -> None:
        """Ask a broker if its pulls may carry commits, unless that is known. Called without
        the lock, after a successful commit, so that the question delays none.
        """
        now = time.monotonic()
        if self._is_supported or now < self._ask_at:
            return
        self._ask_at = now + ASK_AGAIN_S
        try:
            about: dict[str, Any] = self._transport.request("GET", ABOUT_PATH)
        except CatmqError:
            # Commits go alone, which is always possible.
            return
        self._is_supported = FEATURE in about.get("features", ())
