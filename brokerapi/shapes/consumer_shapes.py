"""Joining a group, staying in it, reading and committing; settings of subscriptions in heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from brokerapi.http import formats
from brokerapi.http.longpoll import Asked, Pulled
from brokerapi.http.parsers import Body
from brokerapi.shapes.base import Answer, Id, Request, ShortText
from brokerapi.shapes.message_shapes import OriginAnswer, StoredAnswer, origin_of, stored_rows, with_origins
from messagestore.consume import positions
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import StoredRow
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import Invalid
from metadata.membership import consumers
from metadata.rules.groups.delivery import Delivery

MAX_OWNED = 10_000  # queues one member may hold: a lone one holds all of its group's


class RegisterRequest(Request, kw_only=True):
    """A process that joins a group. `topics` are subscribed to, if the key may manage the group.

    `mode` and `session_timeout_ms` are those of a group that is made for it, and must be those of one that
    exists. A broadcasting group needs an `instance_id`.
    """

    name: ShortText
    incarnation: UUID
    instance_id: ShortText | None = None
    mode: Literal["clustering", "broadcasting"] | None = None
    session_timeout_ms: Annotated[int, Meta(ge=2_000, le=300_000)] | None = None
    topics: Annotated[tuple[ShortText, ...], Meta(max_length=1000)] = ()
    sdk: ShortText = ""


class RegisterAnswer(Answer, kw_only=True):
    """`created` names what was made for it: "group:billing", "subscription:orders"."""

    consumer_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    created: Sequence[str]


class Owned(Request, kw_only=True):
    """A queue a member holds, and the epoch it got it with."""

    queue: Id
    epoch: Id


class HeartbeatRequest(Request, kw_only=True):
    """A member's sign of life; `generation` is the one it has applied, 0 before the first answer."""

    generation: Id
    owned: Annotated[list[Owned], Meta(max_length=MAX_OWNED)]


class Assigned(Answer, kw_only=True, omit_defaults=True):
    """A queue to own. `origin_topic`: its topic is a failure topic, and holds messages of that one."""

    topic: str
    queue: int
    epoch: int
    stopped: bool
    origin_topic: str | UnsetType = UNSET


class HeartbeatAnswer(Answer, kw_only=True):
    """Queues to own and to give up, in `generation`; in a broadcasting group giving up needs no word.

    `subscriptions`: how the messages of each topic in it come; they may change with any answer.
    """

    generation: int
    assigned: list[Assigned]
    revoked: list[int]
    subscriptions: dict[str, DeliverySettings]


class AcquireRequest(Request, kw_only=True):
    """Queues that a heartbeat assigned."""

    queues: Annotated[list[Owned], Meta(max_length=config.max_pull_queues)]

    def claims(self) -> list[Claim]:
        """The queues for the layer below. Raises Invalid if one is named twice."""
        _check_once([owned.queue for owned in self.queues], "queues")
        return [Claim(owned.queue, owned.epoch) for owned in self.queues]


class AcquiredQueue(Answer, kw_only=True):
    """`state` is ok, fenced or unavailable; `offset` is the position to go on from."""

    queue: int
    state: str
    offset: int | None


class AcquireAnswer(Answer, kw_only=True):
    """One state per queue, in order. `generation`: the group's; above the member's own, heartbeat at once."""

    queues: list[AcquiredQueue]
    generation: int


class PullPosition(Request, kw_only=True):
    """The next offset wanted of an owned queue."""

    queue: Id
    epoch: Id
    offset: Id


class PullRequest(Request, kw_only=True):
    """Queues to read, and how long to wait when they have nothing new."""

    generation: Id
    queues: Annotated[list[PullPosition], Meta(max_length=config.max_pull_queues)]
    max_messages: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = min(500, config.max_pull_messages)
    max_bytes: Annotated[int, Meta(ge=1, le=config.max_pull_bytes)] = min(4 << 20, config.max_pull_bytes)
    wait_ms: Annotated[int, Meta(ge=0, le=config.max_wait_ms)] = 0

    def asked(self) -> Asked:
        """The request for the layer below. Raises Invalid if a queue is named twice."""
        _check_once([position.queue for position in self.queues], "queues")
        queues = [PullQueue(position.queue, position.epoch, position.offset) for position in self.queues]
        return Asked(self.generation, queues, self.max_messages, self.max_bytes, self.wait_ms)


class Gap(Answer, kw_only=True):
    """Offsets that are lost for good, from `from_offset` up to, not including, `to_offset`."""

    from_offset: int
    to_offset: int


class PulledAnswer(Answer, kw_only=True, omit_defaults=True):
    """One queue of a pull; `state` is ok, or what keeps it from being read; see messagestore.consume.pull.

    Where the request's `Accept` says `application/msgpack;messages=rows` there are `rows` in place of
    `messages`: each an array of offset, key, tag, headers (as JSON text), body, trace_id, stored_at_ms and
    attempt; its message id is `<queue>-<offset>`. In a failure topic `origins` stand beside the rows.
    """

    queue: int
    state: str
    messages: list[StoredAnswer] | UnsetType = UNSET
    rows: list[StoredRow] | UnsetType = UNSET
    origins: list[OriginAnswer | None] | UnsetType = UNSET
    next_offset: int
    head: int | None
    low: int | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET


class PullAnswer(Answer, kw_only=True, omit_defaults=True):
    """`assignment_changed`: the group's generation moved, heartbeat at once. `retry_after_ms`: as many polls
    as may wait do so already; ask again after so long."""

    generation: int
    queues: list[PulledAnswer]
    assignment_changed: bool
    retry_after_ms: int | UnsetType = UNSET


def pull_answer(pulled: Pulled, kind: formats.Format) -> PullAnswer:
    """The answer to a pull."""
    return PullAnswer(
        generation=pulled.generation,
        queues=[_pulled(queue, kind) for queue in pulled.queues],
        assignment_changed=pulled.assignment_changed,
        retry_after_ms=UNSET if pulled.retry_after_ms is None else pulled.retry_after_ms,
    )


def _pulled(queue: PulledQueue, kind: formats.Format) -> PulledAnswer:
    messages: list[StoredAnswer] | UnsetType = UNSET
    if not kind.rows:
        messages = stored_rows(queue.queue, queue.rows, kind)
        if queue.origins:
            messages = with_origins(messages, queue.origins)
    return PulledAnswer(
        queue=queue.queue,
        state=queue.state,
        messages=messages,
        rows=queue.rows if kind.rows else UNSET,
        origins=[origin_of(text) for text in queue.origins] if kind.rows and queue.origins else UNSET,
        next_offset=queue.next_offset,
        head=queue.head,
        low=UNSET if queue.low is None else queue.low,
        gap=UNSET if queue.gap is None else Gap(from_offset=queue.gap[0], to_offset=queue.gap[1]),
    )


class CommitPosition(Request, kw_only=True):
    """The next offset that the owner will read."""

    queue: Id
    epoch: Id
    offset: Id


class CommitRequest(Request, kw_only=True):
    """Positions to record."""

    offsets: Annotated[list[CommitPosition], Meta(max_length=config.max_pull_queues)]

    def positions(self) -> list[CommitOffset]:
        """The positions for the layer below. Raises Invalid if a queue is named twice."""
        _check_once([position.queue for position in self.offsets], "offsets")
        return [CommitOffset(position.queue, position.epoch, position.offset) for position in self.offsets]


class CommitResult(Answer, kw_only=True):
    """`state` is ok, fenced, out_of_range or unavailable."""

    queue: int
    state: str


class CommitAnswer(Answer, kw_only=True):
    """One state per position, in order; `generation` as in AcquireAnswer."""

    results: list[CommitResult]
    generation: int


def _check_once(queues: list[int], field: str) -> None:
    if len(set(queues)) == len(queues):
        return
    seen: set[int] = set()
    for index, queue in enumerate(queues):
        if queue in seen:
            raise Invalid.field(f"{field}[{index}].queue", f"queue {queue} is named twice")
        seen.add(queue)


REGISTER = Body(RegisterRequest)
HEARTBEAT = Body(HeartbeatRequest)
ACQUIRE = Body(AcquireRequest)
PULL = Body(PullRequest)
COMMIT = Body(CommitRequest)


def heartbeat_answer(told: consumers.HeartbeatAnswer, group_id: int) -> HeartbeatAnswer:
    """The answer to a heartbeat of a member of the group."""
    return HeartbeatAnswer(
        generation=told.generation,
        assigned=assigned(told.assigned),
        revoked=list(told.revoked),
        subscriptions=delivery_settings(group_id, {one.topic for one in told.assigned}),
    )


def assigned(queues: Iterable[consumers.Assigned]) -> list[Assigned]:
    """Queues to own."""
    return [
        Assigned(
            topic=one.topic,
            queue=one.queue,
            epoch=one.epoch,
            stopped=one.stopped,
            origin_topic=one.origin_topic or UNSET,
        )
        for one in queues
    ]


def acquire_answer(acquired: Sequence[positions.Acquired], generation: int) -> AcquireAnswer:
    """The answer to an acquire."""
    queues = [AcquiredQueue(queue=one.queue, state=one.state, offset=one.offset) for one in acquired]
    return AcquireAnswer(queues=queues, generation=generation)


def commit_answer(committed: Sequence[positions.Committed], generation: int) -> CommitAnswer:
    """The answer to a commit."""
    results = [CommitResult(queue=one.queue, state=one.state) for one in committed]
    return CommitAnswer(results=results, generation=generation)


class DeliverySettings(Answer, kw_only=True, omit_defaults=True):
    """Settings of a subscription; what is left out, the member decides by its own options.

    A filter by `tags` and the delay are at work at the broker.
    """

    ordered: bool
    retries: int
    retry_delays_s: Sequence[int]
    delay_s: int
    tags: Sequence[str]
    breaker_pause_s: int
    handler_timeout_ms: int | UnsetType = UNSET
    breaker_failures: int | UnsetType = UNSET
    threads: int | UnsetType = UNSET
    handler_batch: int | UnsetType = UNSET
    max_poll_records: int | UnsetType = UNSET
    fetch_max_wait_ms: int | UnsetType = UNSET


def delivery_settings(group_id: int, topics: Iterable[str]) -> dict[str, DeliverySettings]:
    """The settings of a group's subscriptions to some topics, by topic, as the snapshot has them.

    What failed of a topic comes by the settings of that topic, so those stand for its failure topic.
    """
    known = snapshot.current()
    found: dict[str, DeliverySettings] = {}
    for name in topics:
        topic = known.topic(name)
        if topic is not None and topic.failure_of is not None:
            topic = known.topics.get(topic.failure_of)
        if topic is not None and topic.name not in found:
            found[topic.name] = _settings(known.delivery(group_id, topic.id))
    return found


@lru_cache(maxsize=1_000)
def _settings(delivery: Delivery) -> DeliverySettings:
    # Heartbeats come by the hundred a second, and most subscriptions are alike.
    found = {name: getattr(delivery, name) for name in DeliverySettings.__struct_fields__}
    return DeliverySettings(**{name: value for name, value in found.items() if value is not None})
