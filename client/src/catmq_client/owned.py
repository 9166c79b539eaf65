"""A queue that this consumer owns: how far it is fetched, handed out, finished and committed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from catmq_client.message import Message


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

    def __init__(self, *, topic: str, queue: int, epoch: int, stopped: bool) -> None:
        self.topic = topic
        self.queue = queue
        self.epoch = epoch
        self.acquired = False
        # The next offset to fetch.
        self.position = 0
        self.committed = 0
        self.buffer: deque[Message] = deque()
        # Handed out and not yet known to be done, rising; `_finished` are those of them that are.
        self._handed: deque[int] = deque()
        self._finished: set[int] = set()
        # Handlers of run() that are at work on this queue right now.
        self.running = 0
        # Raised by a seek: what was fetched or handed out before no longer counts.
        self.version = 0
        self.turn_left = self.TURN
        self.stopped = stopped
        self.paused = False
        # A handler of run() failed for good: nothing more is handed out.
        self.halted = False
        self.lost = False
        # Set with the time, monotonic, until which revoked work may go on.
        self.revoked_until: float | None = None
        # The application has to be told before the queue may be released.
        self.tell_revoked = False
        # Not pulled or acquired before this time, monotonic: its node, or the broker, asked for a pause.
        self.not_before = 0.0

    @property
    def name(self) -> AssignedQueue:
        """The queue as applications know it."""
        return AssignedQueue(self.topic, self.queue, self.epoch)

    @property
    def next_offset(self) -> int:
        """The offset that will be handed out next."""
        return self.buffer[0].offset if self.buffer else self.position

    @property
    def unfinished(self) -> int:
        """How many messages are handed out and, in order, not yet done."""
        return len(self._handed)

    def committable(self) -> int:
        """The lowest offset that is not done: what may be committed."""
        return self._handed[0] if self._handed else self.next_offset

    def start_at(self, offset: int) -> None:
        """Begins at the position that the node answered to the acquire."""
        self.acquired = True
        self.position = self.committed = offset

    def gives(self) -> bool:
        """Whether a message may be handed out."""
        return bool(self.buffer) and not (self.paused or self.halted or self.revoked_until is not None)

    def hand_out(self) -> Message:
        """The next message."""
        message = self.buffer.popleft()
        self._handed.append(message.offset)
        return message

    def finish(self, offset: int, version: int) -> None:
        """One message is done; an earlier one may still be at work."""
        if version != self.version:
            return
        self._finished.add(offset)
        while self._handed and self._handed[0] in self._finished:
            self._finished.discard(self._handed.popleft())

    def finish_all(self) -> None:
        """Everything handed out is done."""
        self._handed.clear()
        self._finished.clear()

    def seek(self, offset: int) -> None:
        """Goes on at `offset`; forgets what is fetched and handed out."""
        self.drop()
        self.finish_all()
        self.position = offset
        self.version += 1

    def drop(self) -> None:
        """Forgets what is fetched and not handed out."""
        self.position = self.next_offset
        self.buffer.clear()
