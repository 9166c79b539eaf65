"""Joining a group, staying in it, reading and committing; settings of subscriptions in
heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType, convert

from brokerapi.http import formats
from brokerapi.http.longpoll import PullParameters, PullResult
from brokerapi.http.parsers import Body
from brokerapi.shapes.base import Answer, Id, Request, ShortText
from brokerapi.shapes.message_shapes import (
    StoredAnswer,
    content_fields,
)
from messagestore.consume import positions
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import StoredRow
from messagestore.engine.origins import Origin
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import Invalid
from metadata.membership import consumers
from metadata.rules.groups.delivery import Delivery
from metadata.rules.membership import process_report

# Queues of a member: a lone member owns all queues of its group.
MAX_OWNED = 10_000


class RegisterRequest(Request, kw_only=True):
    """A process that joins a group. It subscribes to `topics` if the key may manage the
    group.

    A group that does not exist is created with `mode`, `session_timeout_ms` and the
    settings of share groups; an existing one must have the same values. A broadcasting
    group needs an `instance_id`.
    """

    name: ShortText
    incarnation: UUID
    instance_id: ShortText | None = None
    mode: Literal["clustering", "broadcasting", "share"] | None = None
    session_timeout_ms: Annotated[int, Meta(ge=2_000, le=300_000)] | None = None
    lease_ms: int | None = None
    run_messages: int | None = None
    max_deliveries: int | None = None
    topics: Annotated[tuple[ShortText, ...], Meta(max_length=1000)] = ()
    sdk: ShortText = ""


class Owned(Request, kw_only=True):
    """A queue that a member owns, and the epoch of the ownership."""

    queue: Id
    epoch: Id


class SlowHandlerReport(Request, kw_only=True):
    """The handler call that runs for the longest time: the first message of it, and since
    when.
    """

    queue: Id
    offset: Id
    running_ms: Id


class ProcessReport(Request, kw_only=True):
    """Threads for handlers and those at work (`busy`); messages in memory that no handler
    has begun; messages handled, and attempts that failed, since the process started."""

    threads: Id
    busy: Id
    buffered: Id
    buffered_bytes: Id
    handled: Id
    failed: Id
    slowest: SlowHandlerReport | None = None


class HeartbeatRequest(Request, kw_only=True):
    """Heartbeat of a member; `generation` is the generation that it has applied, 0 at
    first.

    `report` tells of its process; send it as often as `report_every_ms` of the answer says,
    and not to a broker whose answer lacks that.
    """

    generation: Id
    owned: Annotated[list[Owned], Meta(max_length=MAX_OWNED)]
    report: ProcessReport | None = None

    def process_report(self) -> process_report.ProcessStatus | None:
        if self.report is None:
            return None
        return convert(self.report, process_report.ProcessStatus, from_attributes=True)


class Assigned(Answer, kw_only=True, omit_defaults=True):
    """An assigned queue. `origin_topic`: for a queue of a retry topic, the topic of its
    messages.
    """

    topic: str
    queue: int
    epoch: int
    stopped: bool
    origin_topic: str | UnsetType = UNSET


class HeartbeatAnswer(Answer, kw_only=True):
    """Assigned and revoked queues of `generation`. In a broadcasting group no release is
    necessary.

    `subscriptions`: the delivery settings of each assigned topic; in a share group of every
    topic that it reads. They may change with any answer. `report_every_ms`: how often a
    heartbeat may bring a report.
    """

    generation: int
    assigned: list[Assigned]
    revoked: list[int]
    subscriptions: dict[str, DeliverySettings]
    report_every_ms: int = 1000 * process_report.EVERY_S


class AcquireRequest(Request, kw_only=True):
    """Queues that a heartbeat assigned."""

    queues: Annotated[list[Owned], Meta(max_length=config.max_pull_queues)]

    def claims(self) -> list[Claim]:
        """Return the claims. Raises Invalid if a queue is named twice."""
        _check_distinct([owned.queue for owned in self.queues], "queues")
        return [Claim(owned.queue, owned.epoch) for owned in self.queues]


class AcquireAnswer(Answer, kw_only=True):
    """One state per queue, in order. If `generation` is above that of the member, send a
    heartbeat now.
    """

    queues: Sequence[positions.Acquired]
    generation: int


class PullPosition(Owned, kw_only=True):
    """The next offset to read of an owned queue."""

    offset: Id


class CommitPosition(PullPosition, kw_only=True):
    """The next offset that the owner will read."""


class PullRequest(Request, kw_only=True):
    """Queues to read, and how long to wait when they have nothing new.

    `commit`: offsets that are committed first, as by a commit of their own. Their queues
    need not be among `queues`. Only for brokers whose `GET /api/v1` lists `pull_commit`
    among the features; earlier ones refuse the field.
    """

    generation: Id
    queues: Annotated[list[PullPosition], Meta(max_length=config.max_pull_queues)]
    max_messages: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = min(
        500, config.max_pull_messages
    )
    max_bytes: Annotated[int, Meta(ge=1, le=config.max_pull_bytes)] = min(
        4 << 20, config.max_pull_bytes
    )
    wait_ms: Annotated[int, Meta(ge=0, le=config.max_wait_ms)] = 0
    commit: Annotated[
        tuple[CommitPosition, ...],
        Meta(
            max_length=config.max_pull_queues,
            description="offsets to commit before the queues are read",
        ),
    ] = ()

    def parameters(self) -> PullParameters:
        """Return the parameters of the pull. Raises Invalid if a queue is named twice."""
        _check_distinct([position.queue for position in self.queues], "queues")
        queues = [
            PullQueue(position.queue, position.epoch, position.offset)
            for position in self.queues
        ]
        return PullParameters(
            self.generation,
            queues,
            self.max_messages,
            self.max_bytes,
            self.wait_ms,
            _commit_offsets(self.commit, "commit"),
        )


class Gap(Answer, kw_only=True):
    """Offsets that are lost for good: `from_offset` (included) to `to_offset` (not
    included).
    """

    from_offset: int
    to_offset: int


class PulledAnswer(Answer, kw_only=True, omit_defaults=True):
    """One queue of a pull; `state` is ok, or the reason why it cannot be read.

    With `Accept: application/msgpack;messages=rows` the answer has `rows` instead of
    `messages`. A row is an
    array of offset, key, tag, headers (as JSON text), body, trace_id, stored_at_ms and
    attempt. Its message id is `<queue>-<offset>`. For a queue of a retry topic there are
    also `origins`, one per row.
    """

    queue: int
    state: str
    messages: list[StoredAnswer] | UnsetType = UNSET
    rows: list[StoredRow] | UnsetType = UNSET
    origins: list[Origin | None] | UnsetType = UNSET
    next_offset: int
    head: int | None
    low: int | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET


class CommitResult(Answer):
    """`state` is ok, fenced, out_of_range or unavailable."""

    # Without the number of handled messages, which is only for metrics.
    queue: int
    state: str


class PullAnswer(Answer, kw_only=True, omit_defaults=True):
    """`assignment_changed`: the generation has changed, send a heartbeat now.
    `retry_after_ms`: too many
    pulls are waiting; pull again after this time. `commit`: one state per offset that the
    pull brought, in order; if one of them is not ok, the pull did not wait."""

    generation: int
    queues: list[PulledAnswer]
    assignment_changed: bool
    retry_after_ms: int | UnsetType = UNSET
    commit: (
        Annotated[
            list[CommitResult],
            Meta(
                description="result of each offset of `commit`, in the order of the request"
            ),
        ]
        | UnsetType
    ) = UNSET


def pull_answer(pulled: PullResult, kind: formats.Format) -> PullAnswer:
    return PullAnswer(
        generation=pulled.generation,
        queues=[_pulled_answer(queue, kind) for queue in pulled.queues],
        assignment_changed=pulled.assignment_changed,
        retry_after_ms=UNSET if pulled.retry_after_ms is None else pulled.retry_after_ms,
        commit=commit_results(pulled.committed) if pulled.committed else UNSET,
    )


def _pulled_answer(queue: PulledQueue, kind: formats.Format) -> PulledAnswer:
    return PulledAnswer(
        queue=queue.queue,
        state=queue.state,
        **content_fields(queue.queue, queue.rows, queue.origins, kind),
        next_offset=queue.next_offset,
        head=queue.head,
        low=UNSET if queue.low is None else queue.low,
        gap=UNSET
        if queue.gap is None
        else Gap(from_offset=queue.gap[0], to_offset=queue.gap[1]),
    )


class CommitRequest(Request, kw_only=True):
    """Offsets to commit."""

    offsets: Annotated[list[CommitPosition], Meta(max_length=config.max_pull_queues)]

    def positions(self) -> list[CommitOffset]:
        """Return the offsets to commit. Raises Invalid if a queue is named twice."""
        return _commit_offsets(self.offsets, "offsets")


def _commit_offsets(requested: Sequence[CommitPosition], field: str) -> list[CommitOffset]:
    """Return the offsets to commit. Raises Invalid if a queue is named twice in `field`."""
    _check_distinct([position.queue for position in requested], field)
    return [
        CommitOffset(position.queue, position.epoch, position.offset)
        for position in requested
    ]


class CommitAnswer(Answer, kw_only=True):
    """One state per position, in order; `generation` as in AcquireAnswer."""

    results: list[CommitResult]
    generation: int


def commit_results(committed: Iterable[positions.Committed]) -> list[CommitResult]:
    return [CommitResult(result.queue, result.state) for result in committed]


def _check_distinct(queues: list[int], field: str) -> None:
    if len(set(queues)) == len(queues):
        return
    earlier: set[int] = set()
    for index, queue in enumerate(queues):
        if queue in earlier:
            raise Invalid.field(f"{field}[{index}].queue", f"queue {queue} is named twice")
        earlier.add(queue)


# The lists of these requests have a limit that msgspec checks once they are made, so their
# bytes have one.
MOST_BYTES = 1 << 20  # 1,000 queues take a tenth of it
REGISTER = Body(RegisterRequest, most_bytes=MOST_BYTES)
HEARTBEAT = Body(HeartbeatRequest, most_bytes=2 * MOST_BYTES, check_packed=None)
ACQUIRE = Body(AcquireRequest, most_bytes=MOST_BYTES)
PULL = Body(PullRequest, most_bytes=MOST_BYTES)
COMMIT = Body(CommitRequest, most_bytes=MOST_BYTES)


def heartbeat_answer(
    assignment: consumers.HeartbeatAnswer, group_id: int
) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        generation=assignment.generation,
        assigned=assigned_answers(assignment.assigned),
        revoked=list(assignment.revoked),
        subscriptions=delivery_settings(
            group_id, topics_to_read(group_id, assignment.assigned)
        ),
    )


def topics_to_read(group_id: int, assigned: Iterable[consumers.OwnedQueue]) -> set[str]:
    """Return the topics a member reads: those of its assigned queues, in a share group all
    of the group.
    """
    current = snapshot.current()
    group = current.groups.get(group_id)
    if group is None or not group.is_share:
        return {queue.topic for queue in assigned}
    topics = (
        current.topics.get(subscription.topic_id)
        for subscription in current.subscriptions_of(group_id)
    )
    return {topic.name for topic in topics if topic is not None}


def assigned_answers(queues: Iterable[consumers.OwnedQueue]) -> list[Assigned]:
    return [
        Assigned(
            topic=queue.topic,
            queue=queue.queue,
            epoch=queue.epoch,
            stopped=queue.stopped,
            origin_topic=queue.origin_topic or UNSET,
        )
        for queue in queues
    ]


class DeliverySettings(Answer, kw_only=True, omit_defaults=True):
    """Settings of a subscription; for a missing one the member uses its own option.

    The broker itself applies the filters `tags` and `headers` and the delay.
    `trace_percent`: share of the
    messages of which the member reports how it handled them.
    """

    ordered: bool
    retries: int
    retry_delays_s: tuple[int, ...]
    delay_s: int
    tags: tuple[str, ...]
    headers: Annotated[
        Mapping[str, Sequence[str]],
        Meta(description="headers that a message has, each with the accepted values"),
    ]
    breaker_pause_s: int
    trace_percent: int
    # The view has None for those that are not set.
    handler_timeout_ms: int | UnsetType = UNSET
    breaker_failures: int | UnsetType = UNSET
    threads: int | UnsetType = UNSET
    handler_batch: int | UnsetType = UNSET
    max_poll_records: int | UnsetType = UNSET
    fetch_max_wait_ms: int | UnsetType = UNSET


def delivery_settings(group_id: int, topics: Iterable[str]) -> dict[str, DeliverySettings]:
    """Return the settings of a group's subscriptions, by topic.

    The messages of a retry topic follow the settings of the topic in which they failed, so
    the settings of that topic are returned for it.
    """
    current = snapshot.current()
    settings: dict[str, DeliverySettings] = {}
    for name in topics:
        topic = current.topic(name)
        if topic is not None and topic.failure_of is not None:
            topic = current.topics.get(topic.failure_of)
        if topic is not None and topic.name not in settings:
            settings[topic.name] = _settings(current.delivery(group_id, topic.id))
    return settings


@lru_cache(maxsize=1_000)
def _settings(delivery: Delivery) -> DeliverySettings:
    # Heartbeats arrive at hundreds per second, and most subscriptions have the same settings.
    fields = {name: getattr(delivery, name) for name in DeliverySettings.__struct_fields__}
    fields["headers"] = dict(delivery.headers)
    return DeliverySettings(
        **{name: value for name, value in fields.items() if value is not None}
    )
