"""Runs of share groups: leased, reported on, listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from brokerapi.http import formats
from brokerapi.http.parsers import Body
from brokerapi.shapes.base import Answer, Id, Request, ShortText
from brokerapi.shapes.message_shapes import (
    StoredAnswer,
    content_fields,
)
from brokerapi.shares.waiting import ShareResult
from messagestore.engine.messages import StoredRow
from messagestore.engine.origins import Origin
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import GrantReport, ReportOutcome
from messagestore.shares.listing import LeasedRun
from messagestore.shares.queue_choice import MessageRequest
from metadata.cache import snapshot
from metadata.config import config
from metadata.rules.groups.sharing import MAX_RUN_MESSAGES

MOST_REPORTS = 1_000
MOST_HELD = 10_000
GrantText = Annotated[str, Meta(max_length=100)]


class HeldRun(Request, kw_only=True):
    """A run that a member knows of."""

    queue: Id
    first: Id
    grant: GrantText


class RunReport(HeldRun, kw_only=True):
    """Report on a leased run. It may be repeated.

    `all`: every message of it is finished. Else `finished` are ranges of offsets (the
    second is not included) and `release` offsets that are to be delivered again now. So are
    those in `unseen`, and this lease of them counts as no delivery. `renew`: the lease
    begins anew.

    `begun`, with the `delivery` that came with the run: true if its messages begin now, so
    that the lease counts as a delivery; false if none has begun yet, so that it does not
    count until a report says true.
    """

    all: bool = False
    finished: Annotated[tuple[tuple[Id, Id], ...], Meta(max_length=MAX_RUN_MESSAGES)] = ()
    release: Annotated[tuple[Id, ...], Meta(max_length=MAX_RUN_MESSAGES)] = ()
    unseen: Annotated[tuple[Id, ...], Meta(max_length=MAX_RUN_MESSAGES)] = ()
    renew: bool = False
    begun: bool | None = None
    delivery: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0

    def to_report(self) -> GrantReport:
        return GrantReport(
            self.queue,
            self.first,
            self.grant,
            whole=self.all,
            finished=self.finished,
            release=self.release,
            unseen=self.unseen,
            renew=self.renew,
            begun=self.begun,
            delivery=self.delivery,
        )


Reports = Annotated[tuple[RunReport, ...], Meta(max_length=MOST_REPORTS)]


class ShareRequest(Request, kw_only=True):
    """A member of a share group asks for messages of `topics`, in order of preference; none
    named: of all.

    `done` is recorded first. With `recover` the runs come first that this member has and
    `holding` does not
    list: for a call whose answer was lost. With `count_begun` the member says when it
    begins: a lease of messages that were leased before is no delivery until it reports
    `begun`.
    """

    topics: Annotated[tuple[ShortText, ...], Meta(max_length=1000)] = ()
    max_messages: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = min(
        500, config.max_pull_messages
    )
    max_bytes: Annotated[int, Meta(ge=1, le=config.max_pull_bytes)] = min(
        4 << 20, config.max_pull_bytes
    )
    wait_ms: Annotated[int, Meta(ge=0, le=config.max_wait_ms)] = 0
    done: Reports = ()
    recover: bool = False
    holding: Annotated[tuple[HeldRun, ...], Meta(max_length=MOST_HELD)] = ()
    count_begun: bool = False

    def lease_request(self) -> MessageRequest:
        # None, not the empty set, if the client did not ask to recover: that finds no lost
        # runs.
        held = frozenset(run.grant for run in self.holding) if self.recover else None
        return MessageRequest(
            self.topics, self.max_messages, self.max_bytes, held, self.count_begun
        )


class DoneRequest(Request, kw_only=True):
    """Reports on leased runs, without asking for more."""

    done: Reports


class ReportAnswer(Answer, kw_only=True, omit_defaults=True):
    """Outcome of a report. `state` is ok, lost, gone, invalid (`detail` says why) or
    unavailable.

    `lease_ms`: the length of the lease that begins anew.
    """

    queue: int
    first: int
    grant: str
    state: str
    detail: str | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET


class RunAnswer(Answer, kw_only=True, omit_defaults=True):
    """A leased run: offsets `first` to `end` (not included), without those in `skipped`,
    which count as finished.

    `grant` names the lease, which lasts `lease_ms` from when the request was sent.
    `deliveries` counts the
    leases of the run. Messages are in `messages`, or in `rows` as in a pull. `recovered`:
    the member had it before. `uncounted`: this lease is in `deliveries`, but counts only
    when the member reports `begun`, which it does before the application gets a message of
    it.
    """

    topic: str
    queue: int
    first: int
    end: int
    grant: str
    deliveries: int
    lease_ms: int
    messages: list[StoredAnswer] | UnsetType = UNSET
    rows: list[StoredRow] | UnsetType = UNSET
    origins: list[Origin | None] | UnsetType = UNSET
    skipped: Sequence[tuple[int, int]] = ()
    origin_topic: str | UnsetType = UNSET
    recovered: bool = False
    uncounted: bool = False


class SharedQueue(Answer, kw_only=True):
    """A queue that gives nothing now: `state` is stopped, runs_exhausted, corrupt or
    unavailable.
    """

    queue: int
    state: str


class ShareAnswer(Answer, kw_only=True, omit_defaults=True):
    """Leased runs. `retry_after_ms`: too many calls are waiting; call again after this
    time.
    """

    generation: int
    runs: list[RunAnswer]
    done: list[ReportAnswer]
    queues: list[SharedQueue]
    retry_after_ms: int | UnsetType = UNSET


class DoneAnswer(Answer, kw_only=True):
    """One outcome per report, in order."""

    generation: int
    done: list[ReportAnswer]


class RunsQuery(Request, kw_only=True):
    """Runs of one queue, or of all that the group reads."""

    queue: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ReleaseRequest(Request, kw_only=True):
    """Runs whose lease is to end: those of a queue that begin at an offset."""

    queue: Id
    first: Id


class ReleaseAnswer(Answer, kw_only=True):
    """The number of leases that were ended."""

    released: int


class RunsAnswer(Answer, kw_only=True):
    """Runs by queue and offset; `away` names the nodes that did not answer."""

    runs: Sequence[LeasedRun]
    away: list[str]


MOST_BYTES = 4 << 20  # of all that a member can hold or report at once
SHARE = Body(ShareRequest, most_bytes=MOST_BYTES)
RELEASE = Body(ReleaseRequest, most_bytes=64 << 10)
DONE = Body(DoneRequest, most_bytes=MOST_BYTES)


def share_answer(
    request: ShareRequest, result: ShareResult, kind: formats.Format
) -> ShareAnswer:
    shared = result.shared
    return ShareAnswer(
        generation=result.group.generation,
        runs=[_run_answer(leased, kind) for leased in shared.runs],
        done=report_answers(request.done, result.recorded),
        queues=[
            SharedQueue(queue=queue, state=state)
            for queue, state in sorted(shared.queue_states.items())
        ],
        retry_after_ms=UNSET if result.retry_after_ms is None else result.retry_after_ms,
    )


def report_answers(
    reports: Sequence[RunReport], recorded: Sequence[ReportOutcome]
) -> list[ReportAnswer]:
    return [
        ReportAnswer(
            queue=report.queue,
            first=report.first,
            grant=report.grant,
            state=outcome.state,
            detail=outcome.detail or UNSET,
            lease_ms=UNSET if outcome.lease_ms is None else outcome.lease_ms,
        )
        for report, outcome in zip(reports, recorded, strict=True)
    ]


def _run_answer(leased: Leased, kind: formats.Format) -> RunAnswer:
    run = leased.run
    topic, origin = _topic_names(run.queue)
    return RunAnswer(
        topic=topic,
        queue=run.queue,
        first=run.first,
        end=run.end,
        grant=run.grant.text,
        deliveries=run.delivery_number,
        lease_ms=leased.lease_ms,
        **content_fields(run.queue, leased.rows, leased.origins, kind),
        skipped=leased.skipped,
        origin_topic=origin or UNSET,
        recovered=leased.recovered,
        uncounted=run.uncounted,
    )


def _topic_names(queue: int) -> tuple[str, str]:
    """Return the topic of a queue and, for a retry topic, the topic of its messages; "" if
    there is none.
    """
    current = snapshot.current()
    info = current.queues.get(queue)
    topic = current.topics.get(info.topic_id) if info is not None else None
    if topic is None:  # deleted since
        return "", ""
    origin = current.topics.get(topic.failure_of) if topic.failure_of is not None else None
    return topic.name, origin.name if origin is not None else ""
