"""Loans of a node's pool: a session for one string, and the time of its loan."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from messagestore.engine.mysql_session import Session
from messagestore.pool.circuit import Passage

MAX_AGE_S = 300.0


class Pooled:
    """A session with its birth, last return and the pool's term it was made in."""

    def __init__(self, session: Session, term: int) -> None:
        self.session = session
        self.term = term
        self.born = self.returned = time.monotonic()

    def usable(self, term: int) -> bool:
        """Return True if it may be lent again."""
        now = time.monotonic()
        fresh = now - self.born < MAX_AGE_S and now - self.returned < self.session.idle_limit_s
        return self.session.clean and self.term == term and fresh


class Lender(Protocol):
    """A pool."""

    def lend(self, *, reads: bool, within_s: float | None) -> tuple[Passage, Pooled]: ...

    def take_back(
        self, passage: Passage, pooled: Pooled, error: BaseException | None, *, reads: bool
    ) -> None: ...


class Lending(AbstractContextManager[Session]):
    """The loan of a session, to be entered and left. No generator: every request comes by here."""

    __slots__ = ("_lender", "_passage", "_pooled", "_reads", "_within_s")

    def __init__(self, lender: Lender, *, reads: bool, within_s: float | None = None) -> None:
        self._lender, self._reads, self._within_s = lender, reads, within_s
        self._passage: Passage
        self._pooled: Pooled

    def __enter__(self) -> Session:
        self._passage, self._pooled = self._lender.lend(reads=self._reads, within_s=self._within_s)
        return self._pooled.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lender.take_back(self._passage, self._pooled, error, reads=self._reads)
