"""A queue that this consumer owns: its fetched, handed out, finished and committed offsets."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import islice
from typing import Any

from catmq_client.http.backoff import delay_s
from catmq_client.message import AssignedQueue, Message
from catmq_client.reading.clocks import lease_clock


class OwnedQueue:
    """Offsets of a queue in an epoch, always in this order:

        committed <= committable <= handed out, unfinished ... <= next_offset <= position

    Not locked: every call is made under the lock of the group state.
    """

    # Messages that are handed out of a queue before the next queue has its turn.
    TURN_MESSAGES = 100
    # Pause after the first failure, s. It doubles with each further failure in a row.
    BACK_OFF_S = 0.1
    # run(): number of offsets that may be handed out past the lowest unfinished offset.
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
        # The topic that the application subscribed to. That of a retry topic is the
        # original topic.
        self.subscription: str = origin_topic or topic
        self.queue = queue
        self.epoch = epoch
        self.acquired: bool = False
        # The next offset to fetch.
        self.position: int = 0
        self.committed: int = 0
        self.buffer: deque[Message] = deque()
        # Offsets that are handed out and not below the committable offset, in rising order.
        # `_finished` are those of them that are finished.
        self._handed_out: deque[int] = deque()
        self._finished: set[int] = set()
        # Handed out and failed, but not known to be stored for a retry: these stay
        # unfinished even when the application asks for more.
        self.unstored_failures: set[int] = set()
        # run(): number of messages of this queue that handlers are at work on.
        self.at_work: int = 0
        # Rises with each seek: messages that were fetched or handed out under an older
        # version are void.
        self.version: int = 0
        self.turn_left = self.TURN_MESSAGES
        # Stopped by an operator: the queue stays assigned, but is not fetched and no
        # handler begins.
        self.stopped = stopped
        self.paused = False
        # No handler begins after this time, lease clock. Set for ordered subscriptions
        # while heartbeats are not recorded.
        self.begin_deadline: float = math.inf
        # A message failed that cannot be stored for a retry: nothing more is handed out.
        self.halted = False
        self.lost = False
        # Set when the queue is revoked: until when its messages may finish, monotonic.
        self.revoked_until: float | None = None
        # on_revoked must be called before the queue may be released.
        self.revoke_callback_due = False
        # The same queue granted again under a later epoch. It replaces this grant after the
        # release.
        self.next_grant: OwnedQueue | None = None
        # Not pulled or acquired before this time, monotonic, because its node or the broker
        # could not serve it.
        self.not_before: float = 0.0
        # Failures in a row.
        self.failures: int = 0

    def __str__(self) -> str:
        return f"{self.topic} queue {self.queue}"

    @property
    def name(self) -> AssignedQueue:
        return AssignedQueue(self.topic, self.queue, self.epoch)

    def fencing_fields(self) -> dict[str, Any]:
        """Return the fields of a report by which the broker refuses a late report."""
        return {"epoch": self.epoch}

    def copy_unacquired(self) -> OwnedQueue:
        return OwnedQueue(
            topic=self.topic,
            queue=self.queue,
            epoch=self.epoch,
            stopped=self.stopped,
            origin_topic=self.subscription if self.subscription != self.topic else None,
        )

    @property
    def next_offset(self) -> int:
        return self.buffer[0].offset if self.buffer else self.position

    @property
    def unfinished(self) -> int:
        """Number of offsets from the lowest unfinished offset on that are handed out."""
        return len(self._handed_out)

    @property
    def in_hand(self) -> int:
        """Number of messages that are handed out and unfinished."""
        return len(self._handed_out) - len(self._finished)

    @property
    def window_load(self) -> int:
        """Number of messages that are handed out and unfinished, as a load.

        It is at least WINDOW if the lowest unfinished message holds up that many offsets,
        finished ones included. Then nothing more is handed out.
        """
        is_held_up = len(self._handed_out) >= self.WINDOW
        return max(self.in_hand, self.WINDOW) if is_held_up else self.in_hand

    def committable(self) -> int:
        """Return the lowest unfinished offset, which may be committed."""
        return self._handed_out[0] if self._handed_out else self.next_offset

    def start_at(self, offset: int) -> None:
        """Mark the queue as acquired, and start at the committed offset in the node's
        answer.
        """
        self.acquired = True
        self.failures = 0
        self.position = self.committed = offset

    def can_hand_out(self) -> bool:
        return (
            bool(self.buffer)
            and not self.is_suspended()
            and self.revoked_until is None
            and lease_clock() < self.begin_deadline
        )

    def blocks_handlers(self) -> bool:
        """Return True if no handler may begin now on a message that is handed out."""
        return self.stopped or lease_clock() >= self.begin_deadline

    def is_outdated(self, offset: int, version: int) -> bool:
        """Return True if a message that was handed out under `version` is void."""
        return version != self.version

    def begin(self, offset: int) -> None:
        """Note that a handler of run() begins with a message."""
        self.at_work += 1

    def is_suspended(self) -> bool:
        return self.paused or self.halted or self.stopped

    def back_off(self, *, min_s: float = 0.0, max_s: float) -> None:
        """Back off from the queue: longer with each failure in a row, `min_s` to `max_s`."""
        seconds = delay_s(self.failures, base_s=self.BACK_OFF_S, max_s=max_s)
        self.failures += 1
        self.not_before = time.monotonic() + max(min_s, seconds)

    def hand_out(self, count: int) -> list[Message]:
        """Move up to `count` messages from the buffer to the application."""
        takes_all = count == len(self.buffer)
        messages = list(self.buffer if takes_all else islice(self.buffer, count))
        # In this order: an exception raised into this thread between the two steps must not
        # lose messages. undo_hand_out() removes duplicates, but could not restore missing
        # messages.
        self._handed_out.extend([message.offset for message in messages])
        if takes_all:
            self.buffer.clear()
        else:
            for _ in messages:
                self.buffer.popleft()
        return messages

    def undo_hand_out(self) -> None:
        """Take back the messages that are handed out, except failed messages.

        They are fetched again.
        """
        unfinished_offsets = [
            offset for offset in self._handed_out if offset not in self.unstored_failures
        ]
        if unfinished_offsets:
            self._handed_out = deque(
                offset for offset in self._handed_out if offset in self.unstored_failures
            )
            self._finished.clear()
            self.buffer.clear()
            self.position = unfinished_offsets[0]

    def finish(self, offset: int, version: int) -> None:
        """Mark a message as finished.

        The committable offset stays at the lowest unfinished offset.
        """
        is_void = version != self.version or offset in self.unstored_failures
        if is_void or not self._handed_out or offset < self._handed_out[0]:
            return
        self._finished.add(offset)
        while self._handed_out and self._handed_out[0] in self._finished:
            self._finished.discard(self._handed_out.popleft())

    def finish_all(self) -> None:
        """Mark as finished all that is handed out, except failed messages not stored for a
        retry.
        """
        self._handed_out = deque(
            [offset for offset in self._handed_out if offset in self.unstored_failures]
            if self.unstored_failures
            else ()
        )
        self._finished.clear()

    def mark_failed(self, offset: int) -> None:
        """Mark a message as failed. If unfinished, it stays so until mark_failure_stored()."""
        if offset in self._handed_out:
            self.unstored_failures.add(offset)

    def mark_failure_stored(self, offset: int, version: int) -> None:
        """Finish a failed message: it is stored for a retry, or is a dead letter."""
        self.unstored_failures.discard(offset)
        self.finish(offset, version)

    def seek(self, offset: int) -> None:
        """Continue at `offset`. Messages that are fetched or handed out become void."""
        self.evict()
        self.unstored_failures.clear()
        self.finish_all()
        self.position = offset
        self.version += 1

    def evict(self) -> None:
        """Drop the messages that are fetched and not handed out."""
        self.position = self.next_offset
        self.buffer.clear()
