"""A queue that this consumer owns: how far it is fetched, handed out, finished and
committed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from catmq_client.http.backoff import delay_s
from catmq_client.message import Message
from catmq_client.reading.clocks import lease_clock


class AssignedQueue(NamedTuple):
    """A queue in on_assigned, on_revoked and assignment()."""

    topic: str
    queue: int
    epoch: int


class OwnedQueue:
    """Offsets of one queue in one epoch, always in this order:

        committed <= committable <= handed out, unfinished ... <= next_offset <= position

    Not locked: every call is made under the lock of the group state.
    """

    # Messages taken from one queue before the next one has its turn.
    TURN = 100
    # How long it is left alone after a first failure, s; doubles with each more.
    REST_S = 0.1
    # run(): how far messages may be handed out ahead of one that is held up, where others
    # are done.
    WINDOW = 10_000

    def __init__(
        self,
        *,
        topic: str,
        queue: int,
        epoch: int,
        stopped: bool,
        origin_topic: str | None = None,
    ) -> None:
        self.topic = topic
        # The topic whose messages these are, in the application's eyes: a retry topic holds
        # another's.
        self.subscription = origin_topic or topic
        self.queue = queue
        self.epoch = epoch
        self.acquired = False
        # The next offset to fetch.
        self.position = 0
        self.committed = 0
        self.buffer: deque[Message] = deque()
        # Handed out and not yet known to be done, rising; `_finished` are those of them
        # that are.
        self._handed: deque[int] = deque()
        self._finished: set[int] = set()
        # Handed out, failed, and not yet known to be stored for a retry: not done whoever
        # came back.
        self.reporting: set[int] = set()
        # Handlers of run() that are at work on this queue right now.
        self.running = 0
        # Raised by a seek: what was fetched or handed out before no longer counts.
        self.version = 0
        self.turn_left = self.TURN
        # Stopped by an operator: stays ours, but nothing of it is fetched or begun.
        self.stopped = stopped
        self.paused = False
        # No message begins from this time on, lease clock: of an ordered subscription,
        # while
        # heartbeats are not recorded.
        self.begins_until = math.inf
        # A handler of run() failed for good: nothing more is handed out.
        self.halted = False
        self.lost = False
        # Set with the time, monotonic, until which revoked work may go on.
        self.revoked_until: float | None = None
        # The application has to be told before the queue may be released.
        self.tell_revoked = False
        # The same queue granted to us anew, under a later epoch: ours once this one is
        # released.
        self.heir: OwnedQueue | None = None
        # Not pulled or acquired before this time, monotonic: its node, or the broker,
        # cannot serve it now.
        self.not_before = 0.0
        # Failures in a row.
        self.failures = 0

    def __str__(self) -> str:
        return f"{self.topic} queue {self.queue}"

    @property
    def name(self) -> AssignedQueue:
        """The queue as applications know it."""
        return AssignedQueue(self.topic, self.queue, self.epoch)

    def fence(self) -> dict[str, Any]:
        """Return what a report names, so that none counts that comes too late."""
        return {"epoch": self.epoch}

    def anew(self) -> OwnedQueue:
        origin = self.subscription if self.subscription != self.topic else None
        return OwnedQueue(
            topic=self.topic,
            queue=self.queue,
            epoch=self.epoch,
            stopped=self.stopped,
            origin_topic=origin,
        )

    @property
    def next_offset(self) -> int:
        """The offset that will be handed out next."""
        return self.buffer[0].offset if self.buffer else self.position

    @property
    def unfinished(self) -> int:
        """Number of messages that are handed out and, in order, not yet done."""
        return len(self._handed)

    @property
    def in_hand(self) -> int:
        """The number of those that are not done, in whatever order."""
        return len(self._handed) - len(self._finished)

    @property
    def at_work(self) -> int:
        """The same, as run() sees it; no less than WINDOW once the first one is too far
        behind.
        """
        left = self.in_hand
        return left if len(self._handed) < self.WINDOW else max(left, self.WINDOW)

    def committable(self) -> int:
        """The lowest offset that is not done: what may be committed."""
        return self._handed[0] if self._handed else self.next_offset

    def start_at(self, offset: int) -> None:
        """Begin at the position that the node answered to the acquire."""
        self.acquired = True
        self.failures = 0
        self.position = self.committed = offset

    def can_hand_out(self) -> bool:
        """Return True if a message may be handed out."""
        is_ours = self.revoked_until is None and lease_clock() < self.begins_until
        return bool(self.buffer) and not self.is_shut() and is_ours

    def rests(self) -> bool:
        """Return True if no handler may begin now on what is handed out."""
        return self.stopped or lease_clock() >= self.begins_until

    def has_left(self, offset: int, version: int) -> bool:
        """Return True if a message that was handed out under a version no longer counts."""
        return version != self.version

    def begin(self, offset: int) -> None:
        """A handler of run() begins on a message."""
        self.running += 1

    def is_shut(self) -> bool:
        """Return True if the queue gives nothing although it is ours."""
        return self.paused or self.halted or self.stopped

    def rest(self, *, least_s: float = 0.0, most_s: float) -> None:
        """Leave the queue alone for a while: longer with each failure in a row, up to
        `most_s`.
        """
        seconds = delay_s(self.failures, base_s=self.REST_S, max_s=most_s)
        self.failures += 1
        self.not_before = time.monotonic() + max(least_s, seconds)

    def hand_out(self, count: int) -> list[Message]:
        takes_all = count == len(self.buffer)
        messages = list(self.buffer if takes_all else islice(self.buffer, count))
        # In this order: an interrupt between the two must not lose messages, see
        # undo_hand_out.
        self._handed.extend([message.offset for message in messages])
        if takes_all:
            self.buffer.clear()
        else:
            for _ in messages:
                self.buffer.popleft()
        return messages

    def undo_hand_out(self) -> None:
        """Take back what is handed out, but for what failed; it is fetched again."""
        offsets = [offset for offset in self._handed if offset not in self.reporting]
        if offsets:
            self._handed = deque(
                offset for offset in self._handed if offset in self.reporting
            )
            self._finished.clear()
            self.buffer.clear()
            self.position = offsets[0]

    def finish(self, offset: int, version: int) -> None:
        """One message is done; an earlier one may still be at work."""
        if version != self.version or offset in self.reporting:
            return
        if not self._handed or offset < self._handed[0]:
            return
        self._finished.add(offset)
        while self._handed and self._handed[0] in self._finished:
            self._finished.discard(self._handed.popleft())

    def finish_all(self) -> None:
        """Everything handed out is done, but for what failed and is not stored for a retry
        yet.
        """
        failed = (
            [offset for offset in self._handed if offset in self.reporting]
            if self.reporting
            else ()
        )
        self._handed = deque(failed)
        self._finished.clear()

    def report(self, offset: int) -> None:
        """A message failed; if it is not done yet, it is not before reported() says so."""
        if offset in self._handed:
            self.reporting.add(offset)

    def reported(self, offset: int, version: int) -> None:
        """A failed message is stored for a retry, or a dead letter: it is done here."""
        self.reporting.discard(offset)
        self.finish(offset, version)

    def seek(self, offset: int) -> None:
        """Go on at `offset`, without what is fetched or handed out."""
        self.evict()
        self.reporting.clear()
        self.finish_all()
        self.position = offset
        self.version += 1

    def evict(self) -> None:
        """Evict what is fetched and not handed out."""
        self.position = self.next_offset
        self.buffer.clear()
