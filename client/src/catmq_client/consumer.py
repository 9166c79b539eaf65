"""The consumer of a group whose members each own some of the queues: see Consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from catmq_client.callables import check_result
from catmq_client.errors import CatmqError, CommitFailed, OptionError
from catmq_client.http.transport import Transport, api_path, request_until
from catmq_client.keywords import ConsumerKeywords
from catmq_client.message import AssignedQueue, Message
from catmq_client.options import ConsumerOptions, check_options, list_options
from catmq_client.reading.acquirer import Acquirer
from catmq_client.reading.committer import Committer
from catmq_client.reading.fetcher import Fetcher
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.reader import Reader
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

COMMIT_WITHIN_S = 30.0


@list_options(ConsumerOptions)
class Consumer(Reader[Message]):
    """Reads the queues that its group assigns to it: iterate, `poll`, or `run` a handler in
    threads.

    A message is finished when the application asks for the next one: in iteration the next
    message, in poll() the next batch; in run() when its handler returns. Finished messages
    are committed every auto_commit_interval_ms, with the pull that is sent then if there is
    one, before a queue is released, and on close.
    The committed offset never passes an unfinished message. If you leave a loop, its last
    message is not finished: call commit() first if you have handled it.

    Use it from a single thread; stop() and close() may be called from any. It connects when
    the first message is requested. It cannot be used in a forked process.
    """

    options: ConsumerOptions

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        name: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Subscribe to `topics`, and create the group, if the API key may.

        `urls` is the URL of a broker or several; see HttpTransport. `name` distinguishes
        members. help(Consumer) lists the options. No connection is opened yet.
        """
        super().__init__(
            urls, group=group, topics=topics, name=name, api_key=api_key,
            transport=transport, verify=verify, proxies=proxies, compression=compression,
            **options,
        )  # fmt: skip

    def _configure(self, options: Mapping[str, Any]) -> None:
        self.options = check_options(ConsumerOptions, options)
        self._state = GroupState(self.options)

    def _assemble(self) -> Iterable[Callable[[], object]]:
        """Create acquirer, committer and fetcher. Return the bodies of their threads."""
        transport, state, handle_error = (
            self._transport,
            self._state,
            self._membership.handle_error,
        )
        committer = self._committer = Committer(transport=transport, state=state)
        self._fetcher = Fetcher(
            transport=transport,
            state=state,
            handle_error=handle_error,
            committer=committer,
        )
        state.on_readable = self._fetcher.nudge
        state.on_silent_broker = self._fetcher.interrupt
        self._acquirer = Acquirer(
            transport=transport, state=state, handle_error=handle_error
        )
        return self._acquirer.run, committer.run, committer.run_releases, self._fetcher.run

    @overload
    def run(
        self,
        handler: Callable[[Message], object],
        *,
        threads: int = 8,
        order: Literal["key", "queue", "none"] = "key",
        batch: None = None,
    ) -> None: ...

    @overload
    def run(
        self,
        handler: Callable[[list[Message]], object],
        *,
        threads: int = 8,
        order: Literal["key", "queue", "none"] = "key",
        batch: int,
    ) -> None: ...

    def run(
        self,
        handler: Callable[[Any], object],
        *,
        threads: int = 8,
        order: Literal["key", "queue", "none"] = "key",
        batch: int | None = None,
    ) -> None:
        """Call `handler(message)` in threads until stop() or a signal; then finish, commit
        and leave.

        An `async def` handler is called in an event loop of this thread, up to `threads`
        calls at once.

        order: "key" (the messages of a key in order, never two at a time), "queue" or
        "none". batch: the handler gets a list of at most this many messages of the same
        topic. If the handler raises, the message is stored for a retry; in an ordered
        subscription it is retried in place. A queue stops at a message that cannot be
        stored for a retry. Raises HandlerFailed when all queues have stopped, or at the end
        if any queue has.
        """
        self._run_handler(handler, workers=threads, order=order, batch=batch)

    def fail(self, message: Message, error: BaseException | str = "") -> None:
        """Report a failed message.

        It is delivered again from the retry topic, until its retries are used up. After that,
        and in an ordered subscription at once, it becomes a dead letter. It counts as finished
        when the broker has stored it; no commit passes it before. If its queue moved to another
        member, nothing is reported and that member gets the message again.
        """
        self._check_process()
        with self._state.changed:
            owned = self._state.queues.get(message.queue)
            # The queue may have come back under a later epoch: its messages are delivered
            # again.
            if owned is None or owned.epoch != message.epoch:
                log.info("%r: its queue moved to another member, which repeats it", message)
                return
            self._state.failed += 1
            self._reporter.add(
                owned, message, error, last=self._state.settings_of(owned).ordered
            )

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit all yielded messages (in run(): those whose handlers returned), or
        `offsets` by queue.

        Raises CommitFailed if a queue moved to another member since the last commit,
        Unavailable if something could not be stored within COMMIT_WITHIN_S seconds, and
        OptionError for an offset above the log end offset.
        """
        self._check_process()
        if not self._state.has_worker_threads:
            with self._state.changed:
                self._finish_taken()
        # Reports come first: no commit passes a failed message that is not stored.
        self._reporter.await_first_attempts(COMMIT_WITHIN_S)
        commits = (
            self._committer.due_commits()
            if offsets is None
            else self._committer.commits_at(offsets)
        )
        lost_queues = self._committer.commit_until(commits, within_s=COMMIT_WITHIN_S)
        with self._state.changed:
            unannounced_losses = self._state.unannounced_losses
            moved_queues = {
                queue: unannounced_losses.pop(queue)
                for queue in [*unannounced_losses]
                if offsets is None or queue in offsets
            }
        moved_queues |= {owned.queue: owned for owned in lost_queues}
        if moved_queues:
            queue_names = ", ".join(map(str, moved_queues.values()))
            raise CommitFailed(
                f"{queue_names} moved to another member; its messages will be repeated there"
            )

    def assignment(self) -> list[AssignedQueue]:
        """Return the owned queues."""
        with self._state.changed:
            return [
                owned.name
                for owned in self._state.queues.values()
                if owned.acquired and owned.revoked_until is None
            ]

    def position(self, queue: int) -> int:
        """Return the offset of the next message."""
        with self._state.changed:
            return self._owned_queue(queue).next_offset

    def committed(self, queue: int) -> int:
        """Return the committed offset of an owned queue."""
        with self._state.changed:
            return self._owned_queue(queue).committed

    def seek(self, queue: int, offset: int) -> None:
        """Continue at `offset`.

        Going back repeats messages, but does not lower the committed offset.
        """
        if offset < 0:
            raise OptionError(f"offset={offset}: offsets start at 0")
        with self._state.changed:
            self._state.seek(self._owned_queue(queue), offset)
        self._fetcher.interrupt()

    def seek_to_beginning(self, *queues: int) -> None:
        """Continue at the log start offset of these queues (default: all owned)."""
        self._seek_to("low", queues)

    def seek_to_end(self, *queues: int) -> None:
        """Continue at the log end offset of these queues (default: all owned)."""
        self._seek_to("head", queues)

    def pause(self, *queues: int) -> None:
        """Deliver nothing from these queues (default: all owned) until resume().

        They stay assigned.
        """
        self._set_paused(queues, True)

    def resume(self, *queues: int) -> None:
        """Deliver from these queues again (default: all owned)."""
        self._set_paused(queues, False)
        self._fetcher.interrupt()

    def paused(self) -> list[AssignedQueue]:
        """Return the owned queues that are paused."""
        with self._state.changed:
            return [owned.name for owned in self._state.queues.values() if owned.paused]

    def paused_by_breaker(self) -> list[AssignedQueue]:
        """Return the owned queues that run() has paused because their handler kept failing."""
        topics = (
            set() if self._dispatcher is None else self._dispatcher.open_breaker_topics()
        )
        with self._state.changed:
            return [
                owned.name
                for owned in self._state.queues.values()
                if owned.subscription in topics
            ]

    def close(self, timeout_s: float | None = None) -> None:
        """Commit finished messages, within `timeout_s` (default rebalance_timeout_ms), and
        leave the group.

        With an `instance_id` it does not leave: its queues stay assigned to this instance
        until the session timeout has passed.
        """
        super().close(timeout_s)

    def _close_timeout_s(self) -> float:
        return self.options.rebalance_timeout_ms / 1000

    def _finish_taken(self) -> None:
        """Mark the messages that the application took as finished, except failed ones whose
        report is pending. Note queues that were lost meanwhile, for the next commit().
        """
        for owned in self._taken_queues:
            self._state.finished += owned.in_hand - len(owned.unstored_failures)
            owned.finish_all()
            if owned.lost:
                self._state.unannounced_losses[owned.queue] = owned
            if owned.revoked_until is not None:
                self._state.changed.notify_all()
        if self._taken_queues:
            self._state.note_finished()
        self._taken_queues = []

    def _run_due_callbacks(self) -> None:
        """Call on_assigned and on_revoked, in the application's thread."""
        while (due := self._next_due_callback()) is not None:
            name, callback, owned = due
            try:
                if callback is not None:
                    check_result(name, callback([owned.name]))
            finally:
                self._end_callback(owned)

    def _next_due_callback(
        self,
    ) -> tuple[str, Callable[[list[AssignedQueue]], object] | None, OwnedQueue] | None:
        """Return the next callback to call: its name, the function, and the queue.

        _end_callback() must follow.
        """
        state = self._state
        with state.changed:
            event = state.next_callback()
            if event is None:
                return None
            state.events.remove(event)
        assigned, owned = event
        if assigned:
            return "on_assigned", self.options.on_assigned, owned
        return "on_revoked", self.options.on_revoked, owned

    def _end_callback(self, owned: OwnedQueue) -> None:
        with self._state.changed:
            owned.revoke_callback_due = False
            self._state.changed.notify_all()

    def _finish_work(self, within_s: float) -> None:
        """Revoke all queues, then report the last failures and commit."""
        state = self._state
        with state.changed:
            if self.options.on_revoked:
                owned_queues = [
                    owned
                    for owned in state.queues.values()
                    if owned.acquired and not owned.revoke_callback_due
                ]
                # Queues whose on_revoked is pending are already in `events`.
                state.events.extend((False, owned) for owned in owned_queues)
        self._run_due_callbacks()
        if not self._reporter.flush(within_s):
            log.warning(
                "group %s: some failures were not reported; messages will be repeated",
                self.group,
            )
        if not self.options.enable_auto_commit:
            return
        try:
            for owned in self._committer.commit_until(
                self._committer.due_commits(), within_s=within_s
            ):
                log.warning(
                    "%s moved to another member: its messages will be repeated", owned
                )
        except CatmqError as error:
            log.warning(
                "group %s: the last commit failed, messages will be repeated: %s",
                self.group,
                error,
            )

    def _owned_queue(self, queue: int) -> OwnedQueue:
        """Return an acquired queue, or raise OptionError."""
        owned = self._state.queues.get(queue)
        if owned is None or not owned.acquired:
            raise OptionError(f"queue {queue} is not owned by this consumer now")
        return owned

    def _chosen_queues(self, queues: tuple[int, ...]) -> list[OwnedQueue]:
        """Return the named queues, or all acquired queues."""
        all_queues = [owned for owned in self._state.queues.values() if owned.acquired]
        return [self._owned_queue(queue) for queue in queues] if queues else all_queues

    def _set_paused(self, queues: tuple[int, ...], paused: bool) -> None:
        with self._state.changed:
            for owned in self._chosen_queues(queues):
                owned.paused = paused
                if paused:
                    # Buffered messages of a paused queue must not take the room of the
                    # others.
                    self._state.evict(owned)
            self._state.changed.notify_all()

    def _seek_to(self, boundary: str, queues: tuple[int, ...]) -> None:
        """Seek to the `low` or `head` of queues, as their topics show it now."""
        with self._state.changed:
            chosen_queues = self._chosen_queues(queues)
        for topic in sorted({owned.topic for owned in chosen_queues}):
            path = api_path("topics", topic)
            description = request_until(
                self._transport, "GET", path, within_s=COMMIT_WITHIN_S
            )
            boundaries = {
                queue["queue"]: queue[boundary] for queue in description["queues"]
            }
            for owned in chosen_queues:
                if owned.topic == topic and boundaries.get(owned.queue) is not None:
                    self.seek(owned.queue, boundaries[owned.queue])
