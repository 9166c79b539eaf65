"""Groups as Java clients get them: the queues to own, how to read them, and versions of
both.

Versions only show that something changed. The broker compares with the last answer to the
client, which its membership stores. `rbVersion` rises when the client has to stop and start
its queues: for other queues, or other thread counts (a client on a newer Java fails when a
running queue gets more threads). Any other change raises `metaVersion`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import json

from brokerapi.java import handles
from messagestore.consume import positions
from messagestore.consume.positions import Claim
from metadata.cache import snapshot
from metadata.membership import consumers, java_members
from metadata.membership.consumers import HeartbeatAnswer, OwnedQueue
from metadata.membership.java_members import JavaMember, LastAnswer

# Kinds of topics, for Java clients.
NORMAL, FAILED = 1, 2
THREADS = 10
PULL_MESSAGES, MOST_PULL_MESSAGES = 50, 300
# Longest pause of a client between two empty pulls. Each of them waits at the broker, too.
MAX_PULL_S = 1
# A generation that no group has: the caller reads the assignment again.
OUTDATED = -1
Settings = dict[str, Any]


class MemberNews(NamedTuple):
    """A member, the generation of its group, and the news for its client; None: there is
    none.
    """

    member: JavaMember
    generation: int
    group: Settings | None = None


def heartbeat(member: JavaMember, client_version: int) -> MemberNews:
    """Record a heartbeat of a client that has version `client_version`. Return the news.

    A client that has the newest version has stopped the queues that it had to give up.
    Raises Gone, MetadataUnavailable.
    """
    is_current = client_version == member.version
    answer, settings = _record_heartbeat(
        member, member.last_answer.generation if is_current else 0
    )
    if (
        is_current
        and answer.revoked
        and _content_digest(settings) == member.last_answer.content
    ):
        # The client stopped these queues after its last answer, and their target has changed
        # since. A second heartbeat releases them.
        answer, settings = _record_heartbeat(member, answer.generation)
    if is_current and _content_digest(settings) == member.last_answer.content:
        return MemberNews(member, answer.generation)
    news = _news(member, answer, settings)
    is_unchanged = is_current and news.member.version == client_version
    return MemberNews(member, news.generation) if is_unchanged else news


def read_assignment(member: JavaMember) -> MemberNews:
    """Return the assignment for a client that compares it with its own. Records no
    heartbeat.

    Raises Gone, MetadataUnavailable.
    """
    answer = consumers.assignment(consumer=member.consumer)
    return _news(member, answer, _settings_of_queues(member, answer))


def deleted_group(group: str, version: int) -> Settings:
    """Return a deleted group as a client that still names it gets it: without queues."""
    meta = {"name": group, "rbVersion": version, "metaVersion": version, "version": version}
    return {"meta": meta, "queues": {}}


def _record_heartbeat(
    member: JavaMember, generation: int
) -> tuple[HeartbeatAnswer, list[Settings]]:
    """Record a heartbeat of a client that has applied a generation. Return its answer and
    the queues to own.
    """
    answer = consumers.heartbeat(consumer=member.consumer, generation=generation, owned=())
    return answer, _settings_of_queues(member, answer)


def _news(
    member: JavaMember, answer: HeartbeatAnswer, settings: Sequence[Settings]
) -> MemberNews:
    """Return the news for a client, under a new version if its last answer was different."""
    last = member.last_answer
    is_same = _content_digest(settings) == last.content
    queues = _acquire(member, answer.assigned, settings, acquired_before=is_same)
    restart_digest = _digest([(queue["queueId"], queue["threadSize"]) for queue in queues])
    new_answer = LastAnswer(
        generation=answer.generation,
        queues=restart_digest,
        content=_content_digest(queues),
        rb_version=last.rb_version + (restart_digest != last.queues),
        meta_version=last.meta_version + 1,
    )
    if new_answer.content != last.content:
        # The membership row arbitrates between brokers that answer the client at once.
        if not java_members.record_answer(member=member, answer=new_answer):
            return MemberNews(member, OUTDATED)  # another broker was quicker
        member = replace(member, version=member.version + 1, last_answer=new_answer)
    meta = {
        "name": member.group,
        "rbVersion": member.last_answer.rb_version,
        "metaVersion": member.last_answer.meta_version,
        "version": member.version,
    }
    group = {"meta": meta, "queues": {str(queue["queueId"]): queue for queue in queues}}
    return MemberNews(member, answer.generation, group)


def _content_digest(queues: Sequence[Settings]) -> str:
    """Return a digest of everything about queues except the offsets, which change all the
    time.
    """
    return _digest(
        [
            {name: value for name, value in queue.items() if name != "offset"}
            for queue in queues
        ]
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.encode(value)).hexdigest()[:32]


def _acquire(
    member: JavaMember,
    assigned: Sequence[OwnedQueue],
    settings: Sequence[Settings],
    *,
    acquired_before: bool,
) -> list[Settings]:
    """Acquire the assigned queues on their nodes. Return the settings of the acquired
    queues, with offsets.

    Queues that the client has acquired before are included while their node is away, at
    offset 0: a pull starts at the committed offset.
    """
    # A Java client does not acquire queues itself, so the broker acquires them for it.
    claims = [Claim(queue.queue, queue.epoch) for queue in assigned]
    states = positions.acquire(consumer=member.consumer, queues=claims) if claims else []
    return [
        queue_settings | {"offset": state.offset or 0}
        for queue_settings, state in zip(settings, states, strict=True)
        if state.state == "ok" or (acquired_before and state.state == "unavailable")
    ]


def _settings_of_queues(member: JavaMember, answer: HeartbeatAnswer) -> list[Settings]:
    return [_queue_settings(member, queue) for queue in answer.assigned]


def _queue_settings(member: JavaMember, queue: OwnedQueue) -> Settings:
    """Return a queue as the client gets it. Delays and filters are applied by the broker."""
    current = snapshot.current()
    topic = current.topic(queue.topic)
    origin = current.topic(queue.origin_topic or queue.topic)
    delivery = current.delivery(
        member.consumer.group_id, origin.id if origin is not None else 0
    )
    # The same id for both fields: a commit sends `queueOffsetId`, a pull and a failure
    # report send `queueId`.
    queue_id = handles.encode(member.consumer.member_id, queue.queue)
    return {
        "queueOffsetId": queue_id,
        "queueId": queue_id,
        "offsetVersion": queue.epoch,
        "offset": 0,
        "consumerGroupName": member.group,
        "topicName": queue.topic,
        "originTopicName": queue.origin_topic or queue.topic,
        "topicType": FAILED if queue.origin_topic else NORMAL,
        "topicId": topic.id if topic is not None else 0,
        "delayProcessTime": 0,
        "threadSize": 1 if delivery.ordered else delivery.threads or THREADS,
        "pullBatchSize": min(
            delivery.max_poll_records or PULL_MESSAGES, MOST_PULL_MESSAGES
        ),
        "consumerBatchSize": 1 if delivery.ordered else delivery.handler_batch or 1,
        # Java clients count deliveries, not retries. A broadcasting group keeps no retries,
        # so its clients must not report failures.
        "retryCount": 0 if member.broadcasts else delivery.retries + 1,
        "stopFlag": int(queue.stopped),
        "traceFlag": 0,
        "maxPullTime": MAX_PULL_S,
        "timeout": -(-(delivery.handler_timeout_ms or 0) // 1000),
    }
