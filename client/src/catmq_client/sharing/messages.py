"""A message of a share group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from catmq_client.message import Message, Row, Source
from catmq_client.sharing.runs import HeldRun


class Book(Protocol):
    """Records the results of messages; see LeaseBook."""

    def accept(self, message: ShareMessage) -> bool: ...
    def redeliver(self, message: ShareMessage, delay_s: float | None) -> bool: ...
    def reject(self, message: ShareMessage, error: BaseException | str) -> bool: ...
    def renew(self, message: ShareMessage, seconds: float) -> bool: ...


class ShareMessage(Message):
    """A message, leased to this member until it is accepted, released or rejected.

    Each of the three returns False, and does nothing, if the message is not this member's
    any more: it was accepted, released or rejected before, or another member has it because
    the lease ran out.
    """

    __slots__ = ("_book", "_run")

    def __init__(
        self,
        source: Source,
        row: Row,
        origin: Mapping[str, Any] | None = None,
        *,
        run: HeldRun,
        book: Book,
    ) -> None:
        super().__init__(source, row, origin)
        self._run = run
        self._book = book

    @property
    def run(self) -> HeldRun:
        """The run that the message was leased in."""
        return self._run

    @property
    def deliveries(self) -> int:
        """Number of times that this message was delivered, this time included.

        A lease that ended before its member had begun counts once at most.
        """
        return self._run.deliveries

    @property
    def lease_left_s(self) -> float:
        """Seconds until the lease ends, if it is not renewed; 0 if it has ended.

        While the process works, the lease is renewed in time. A lease that has ended counts
        until another member takes the message.
        """
        return self._run.lease_left_s

    @property
    def is_held(self) -> bool:
        """True while the message is this member's, as far as it knows."""
        return self._run.is_ours(self.offset)

    def accept(self) -> bool:
        """Finish the message: it is not delivered again."""
        return self._book.accept(self)

    def release(self, delay_s: float | None = None) -> bool:
        """Let any member get the message again: at once, or from the retry topic after
        `delay_s` seconds.

        With a delay it counts as failed: its attempt rises.
        """
        return self._book.redeliver(self, delay_s)

    def reject(self, error: BaseException | str = "") -> bool:
        """Make the message a dead letter."""
        return self._book.reject(self, error)

    def renew(self, seconds: float) -> bool:
        """Keep the lease for at least `seconds` from now, also beyond max_processing_ms."""
        return self._book.renew(self, seconds)
