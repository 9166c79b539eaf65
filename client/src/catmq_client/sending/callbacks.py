"""Calls of those who want to be told how a send ended; who flushes waits for them, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from catmq_client.sending.receipts import Batch, SendFuture


class Callbacks:
    """Those of one buffer, under its lock; `changed` is a condition on it."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # Sends that have ended while a call was due; and whether this thread makes calls now.
        self._uncalled: set[SendFuture] = set()
        self._thread = threading.local()

    def note(self, batch: Batch) -> None:
        """A batch has ended: its calls are due. Called under the lock, in one step with its end."""
        self._uncalled.update([future for future in batch.futures if future.callbacks])

    def are_due(self, batch: Batch) -> bool:
        """Return True if there is somebody to call."""
        return batch.has_callbacks() or not self._uncalled.isdisjoint(batch.futures)

    def waiting(self) -> list[SendFuture]:
        """The sends whose calls have not returned. Called under the lock."""
        return [*self._uncalled]

    def call(self, batch: Batch) -> None:
        """Makes the calls of a batch that has ended."""
        outer, self._thread.calls = self._is_calling(), True
        try:
            batch.run_callbacks()
        finally:
            self._thread.calls = outer
            with self._changed:
                self._uncalled.difference_update(batch.futures)
                self._changed.notify_all()

    def await_returned(
        self,
        futures: Collection[SendFuture],
        timeout_s: float | None,
        *,
        under_way: Callable[[], Iterable[SendFuture]],
    ) -> bool:
        """Waits until these sends have ended and their calls have returned; whether they have.

        Not in such a call: it would wait for itself, or for another one that waits for it.
        """

        def are_over() -> bool:
            return self._uncalled.union(under_way()).isdisjoint(futures)

        with self._changed:
            return self._is_calling() or self._changed.wait_for(are_over, timeout_s)

    def _is_calling(self) -> bool:
        return getattr(self._thread, "calls", False)
