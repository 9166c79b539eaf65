"""The circuit breaker of a subscription: after failures in a row its handler rests, then gets one message."""

from __future__ import annotations


class Breaker:
    """Counts what became of handler calls. Not locked; times are monotonic seconds.

    >>> breaker = Breaker()
    >>> breaker.failed(limit=2, pause_s=30, now=0), breaker.failed(limit=2, pause_s=30, now=1)
    (False, True)
    >>> breaker.bars(now=30), breaker.bars(now=31), breaker.begin(), breaker.bars(now=31)
    (True, False, True, True)
    >>> breaker.succeeded(), breaker.bars(now=31)
    (True, False)
    """

    def __init__(self) -> None:
        self.failures = 0
        # Set while it is open: when one message may be tried.
        self.open_until: float | None = None
        self._probing = False

    def bars(self, now: float) -> bool:
        """Return True if no handler may begin now."""
        return self.open_until is not None and (self._probing or now < self.open_until)

    def begin(self) -> bool:
        """A handler begins; whether its message is the one that is tried."""
        self._probing = self.open_until is not None
        return self._probing

    def succeeded(self, *, probe: bool = True) -> bool:
        """A handler returned; whether that closes it: while it is open only the tried message counts."""
        if self.open_until is not None and not probe:
            return False
        closes = self.open_until is not None
        self.reset()
        return closes

    def failed(self, *, limit: int | None, pause_s: float, now: float, probe: bool = False) -> bool:
        """A handler failed; whether that opens it, or keeps it open for another pause."""
        self.failures += 1
        if limit is None or (self.open_until is not None and not probe):
            return False
        if not probe and self.failures < limit:
            return False
        self.open_until, self._probing = now + pause_s, False
        return True

    def let_go(self) -> None:
        """The message that was to be tried was not: another one may be."""
        self._probing = False

    def reset(self) -> None:
        """Closes it."""
        self.failures, self.open_until, self._probing = 0, None, False
