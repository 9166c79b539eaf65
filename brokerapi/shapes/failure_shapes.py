"""Reports of members: messages whose handler failed, and how sampled ones were handled."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from brokerapi.http.parsers import Body
from brokerapi.shapes.base import Id, Request
from messagestore.engine.messages import MAX_DELAY_MS
from messagestore.retries.failures import Failure
from metadata.config import config
from metadata.errors import Invalid
from metadata.groups.handling_traces import Attempt
from metadata.rules.groups.sharing import Grant

MAX_TIME_MS = (1 << 48) - 1


class FailedMessage(Request, kw_only=True):
    """A message whose handler failed. The first 2,000 characters of `error` are stored:
    begin with its class.

    `first_failed_at_ms`: time of the first failure; a repeated report must have the same.
    `last`: its
    retries in place are used up, so it becomes a dead letter now; `final` means the same.
    Members of share groups give the `grant` of the run instead of an `epoch`. `delay_ms`:
    the pause before the retry, instead of that of the subscription.
    """

    queue: Id
    epoch: Id | None = None
    grant: str | None = None
    offset: Id
    error: str | None = None
    first_failed_at_ms: Annotated[int, Meta(ge=0, le=MAX_TIME_MS)] | None = None
    last: bool = False
    final: bool = False
    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None

    def failure(self, index: int) -> Failure:
        """Return the failure to store. Raises Invalid."""
        grant = Grant.parse(self.grant) if self.grant is not None else None
        if (self.epoch is None) == (self.grant is None):
            problem = "give either the epoch of the queue, or the grant of the run in a share group"
            raise Invalid.field(f"messages[{index}].epoch", problem)
        if self.grant is not None and grant is None:
            raise Invalid.field(
                f"messages[{index}].grant", "is not a grant that a broker gave"
            )
        return Failure(
            queue=self.queue,
            epoch=self.epoch or 0,
            offset=self.offset,
            error=self.error or "",
            first_failed_at_ms=self.first_failed_at_ms,
            last=self.last or self.final,
            grant=grant,
            delay_ms=self.delay_ms,
        )


class FailuresRequest(Request, kw_only=True):
    """Failed messages to retry later. The report may be repeated: each message is stored
    once.
    """

    messages: Annotated[
        list[FailedMessage], Meta(min_length=1, max_length=config.max_messages)
    ]

    def failures(self) -> list[Failure]:
        """Return the failures to store. Raises Invalid if a message is named twice."""
        earlier: set[tuple[int, int]] = set()
        for index, message in enumerate(self.messages):
            if (message.queue, message.offset) in earlier:
                problem = f"message {message.queue}-{message.offset} is named twice"
                raise Invalid.field(f"messages[{index}].offset", problem)
            earlier.add((message.queue, message.offset))
        return [message.failure(index) for index, message in enumerate(self.messages)]


FAILURES = Body(FailuresRequest)


MOST_TRACES = 500  # of one report


class HandledMessage(Request, kw_only=True):
    """An attempt at a message, which began `ago_ms` before the report; `attempt` counts the
    failed ones before it. Of a retry, queue and offset are those of its origin.
    """

    queue: Id
    offset: Id
    attempt: Id = 0
    outcome: Literal["handled", "failed"]
    ago_ms: Id
    took_ms: Id


class TracesRequest(Request, kw_only=True):
    """Messages that a member handled. Brokers keep those of the sample that `trace_percent`
    asks for: CRC-32 of the ASCII text `<queue>-<offset>`, modulo 100, is below it."""

    traces: Annotated[list[HandledMessage], Meta(max_length=MOST_TRACES)]

    def attempts(self) -> list[Attempt]:
        return [
            Attempt(
                message.queue,
                message.offset,
                message.attempt,
                message.outcome,
                message.ago_ms,
                message.took_ms,
            )
            for message in self.traces
        ]


TRACES = Body(TracesRequest, most_bytes=256 << 10)
