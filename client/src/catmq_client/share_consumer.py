"""The consumer of a share group: see ShareConsumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from catmq_client.errors import CommitFailed, Unavailable
from catmq_client.http.transport import Transport
from catmq_client.keywords import ShareConsumerKeywords
from catmq_client.options import ShareConsumerOptions, check_options, list_options
from catmq_client.reading.reader import Reader
from catmq_client.sharing.leases import LeaseBook
from catmq_client.sharing.messages import ShareMessage
from catmq_client.sharing.puller import Puller
from catmq_client.sharing.renewer import Renewer

log: logging.Logger = logging.getLogger("catmq.consumer")

COMMIT_WITHIN_S = 30.0


@list_options(ShareConsumerOptions)
class ShareConsumer(Reader[ShareMessage]):
    """Reads messages that any member of its group may get: iterate, `poll`, or `run` a
    handler in threads.

    There may be more members than queues. Each message is leased to one member; the lease
    is renewed while the process works. A message is accepted when the application asks for
    the next one: in iteration the next message, in poll() the next batch; in run() when its
    handler returns. accept(), release() and reject() end a message earlier. With
    auto_accept=False nothing else ends it. Messages that are not accepted when the consumer
    closes, or when its process dies and the lease has run out, are delivered again, to
    anybody.

    Take messages in a single thread; any thread may accept them, and call stop() and
    close(). It connects when the first message is requested. It cannot be used in a forked
    process.
    """

    options: ShareConsumerOptions
    _state: LeaseBook
    _puller_class: type[Puller] = Puller

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
        **options: Unpack[ShareConsumerKeywords],
    ) -> None:
        """Subscribe to `topics`, and create the group, if the API key may.

        `urls` is the URL of a broker or several; see HttpTransport. `name` distinguishes
        members. help(ShareConsumer) lists the options. No connection is opened yet.
        """
        super().__init__(
            urls, group=group, topics=topics, name=name, api_key=api_key,
            transport=transport, verify=verify, proxies=proxies, compression=compression,
            **options,
        )  # fmt: skip

    def _configure(self, options: Mapping[str, Any]) -> None:
        self.options = check_options(ShareConsumerOptions, options)
        self._state = LeaseBook(self.options)

    def _assemble(self) -> Iterable[Callable[[], object]]:
        transport, book, handle_error = (
            self._transport,
            self._state,
            self._membership.handle_error,
        )
        self._puller = self._puller_class(
            transport=transport, book=book, handle_error=handle_error, topics=self.topics
        )
        self._renewer = Renewer(transport=transport, book=book, handle_error=handle_error)
        book.on_silent_broker = self._puller.interrupt
        book.on_failed = self._reporter.add
        return self._puller.run, self._renewer.run

    @overload
    def run(
        self,
        handler: Callable[[ShareMessage], object],
        *,
        threads: int = 8,
        batch: None = None,
    ) -> None: ...

    @overload
    def run(
        self,
        handler: Callable[[list[ShareMessage]], object],
        *,
        threads: int = 8,
        batch: int,
    ) -> None: ...

    def run(
        self,
        handler: Callable[[Any], object],
        *,
        threads: int = 8,
        batch: int | None = None,
    ) -> None:
        """Call `handler(message)` in threads until stop() or a signal; then finish, report
        and leave.

        An `async def` handler is called in an event loop of this thread, up to `threads`
        calls at once.

        batch: the handler gets a list of at most this many messages of the same topic. If
        the handler returns, its messages are accepted, except for those that it released or
        rejected. If it raises, the message is stored for a retry. Messages are handled in
        no order. Raises HandlerFailed, and gives its messages back to the group, if a
        failed message cannot be stored for a retry.
        """
        self._note_capacity(threads, batch)
        self._run_handler(handler, workers=threads, order="none", batch=batch)

    def _note_capacity(self, workers: int, batch: int | None) -> None:
        """Note how many messages handlers may have at work, which bounds the pulls."""
        self._state.threads, self._state.max_at_work = workers, workers * (batch or 1)

    def fail(self, message: ShareMessage, error: BaseException | str = "") -> None:
        """Report a failed message.

        It is delivered again from the retry topic, until its retries are used up.

        After that it becomes a dead letter. It counts as finished when the broker has
        stored it.
        """
        self._check_process()
        with self._state.changed:
            if message.is_held:
                self._state.failed += 1
                self._reporter.add(message.run, message, error)
            else:
                log.info(
                    "%r: no longer leased to this member, so its failure is not reported",
                    message,
                )

    def commit(self) -> None:
        """Report all messages that are accepted, released or rejected.

        In iteration and after poll(), the messages taken before are accepted first. Raises
        CommitFailed if another member had accepted messages by then, because their lease
        had run out, and Unavailable if something could not be reported within
        COMMIT_WITHIN_S seconds.
        """
        self._check_process()
        if not self._state.has_worker_threads:
            with self._state.changed:
                self._finish_taken()
        is_reported = self._reporter.await_first_attempts(
            COMMIT_WITHIN_S
        ) and self._renewer.flush(COMMIT_WITHIN_S)
        with self._state.changed:
            lost_runs, self._state.unannounced_losses = self._state.unannounced_losses, {}
        if lost_runs:
            run_names = ", ".join(map(str, lost_runs.values()))
            raise CommitFailed(
                f"{run_names}: the lease ended before the report, and another member may have "
                "got the messages"
            )
        if not is_reported:
            raise Unavailable(
                "not reported: brokers or nodes do not answer", code="node_unavailable"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Report finished messages within `timeout_s` (default close_timeout_ms), give back
        all others, and leave.
        """
        super().close(timeout_s)

    def _close_timeout_s(self) -> float:
        return self.options.close_timeout_ms / 1000

    def _begin_take(self, limit: int) -> None:
        self._state.demand = limit
        super()._begin_take(limit)

    def _finish_taken(self) -> None:
        if self.options.auto_accept:
            for run in self._taken_queues:
                self._state.accept_taken(run)
        self._taken_queues = []
        self._state.changed.room.notify_all()
        # The application waits for messages from now on: brokers may have to record that
        # some begin.
        self._state.changed.reports.notify_all()

    def _finish_work(self, within_s: float) -> None:
        # Messages that the application never got are given back, and their lease does not
        # count as a delivery. A pull under way may lease them again; its answer is given
        # back, too. Leaving the group ends all other leases.
        self._state.give_back_waiting()
        if not self._reporter.flush(within_s):
            log.warning(
                "group %s: some failures were not reported; messages will be repeated",
                self.group,
            )
        if not self._renewer.flush(within_s):
            log.warning(
                "group %s: brokers were not told of all that is done; it may be repeated",
                self.group,
            )
