"""Groups as Java clients are told them: the queues to own, how to read them, and versions
of both.

Versions only say that something is new. What is compared is what the client was told last,
which its membership keeps. `rbVersion` rises when the client has to stop and start: other
queues, or other threads (a client on a newer Java fails at more threads for a queue that
runs). Anything else raises
`metaVersion`.
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

NORMAL, FAILED = 1, 2  # kinds of topics
THREADS = 10
PULL_MESSAGES, MOST_PULL_MESSAGES = 50, 300
MAX_PULL_S = 1  # longest pause between two empty pulls: each of them waits here, too
OUTDATED = -1  # a generation that has passed: look again
Settings = dict[str, Any]


class MemberNews(NamedTuple):
    """A member as it is, the generation of its group, and what its client is told; None:
    nothing is new.
    """

    member: JavaMember
    generation: int
    group: Settings | None = None


def heartbeat(member: JavaMember, asked: int) -> MemberNews:
    """Return what there is for a client that has version `asked`.

    It counts as a heartbeat. A client that has the newest version has stopped what it was
    told to give up. Raises Gone, MetadataUnavailable.
    """
    knows = asked == member.version
    answer, settings = _heard(member, member.last_answer.generation if knows else 0)
    if knows and answer.revoked and _content(settings) == member.last_answer.content:
        # It has stopped them: they go to another one than they were to go to when it was
        # told.
        answer, settings = _heard(member, answer.generation)
    if knows and _content(settings) == member.last_answer.content:
        return MemberNews(member, answer.generation)
    seen = _tell(member, answer, settings)
    is_known = knows and seen.member.version == asked
    return MemberNews(member, seen.generation) if is_known else seen


def read_assignment(member: JavaMember) -> MemberNews:
    """Return what there is for a client that compares it with what it has; that it asked is
    not recorded.

    Raises Gone, MetadataUnavailable.
    """
    answer = consumers.assignment(consumer=member.consumer)
    return _tell(member, answer, _all_settings(member, answer))


def deleted_group(group: str, version: int) -> Settings:
    """A group that was deleted, as a client that still names it is told it: with no queues."""
    meta = {"name": group, "rbVersion": version, "metaVersion": version, "version": version}
    return {"meta": meta, "queues": {}}


def _heard(member: JavaMember, generation: int) -> tuple[HeartbeatAnswer, list[Settings]]:
    """Record a heartbeat of a client that has applied a generation; the answer, and the
    queues to own.
    """
    answer = consumers.heartbeat(consumer=member.consumer, generation=generation, owned=())
    return answer, _all_settings(member, answer)


def _tell(
    member: JavaMember, answer: HeartbeatAnswer, settings: Sequence[Settings]
) -> MemberNews:
    """Return what a client is told, under a new version if it was not told that before."""
    is_same = _content(settings) == member.last_answer.content
    queues = _acquired(member, answer.assigned, settings, acquired_before=is_same)
    told = _told(member, answer.generation, queues)
    if told.content != member.last_answer.content:
        if not java_members.record_answer(member=member, answer=told):
            return MemberNews(member, OUTDATED)  # another broker was quicker
        member = replace(member, version=member.version + 1, last_answer=told)
    return MemberNews(member, answer.generation, _group(member, queues))


def must_restart(before: JavaMember, after: JavaMember) -> bool:
    """Return True if the client was told to stop and start."""
    return after.last_answer.rb_version > before.last_answer.rb_version


def _told(member: JavaMember, generation: int, queues: Sequence[Settings]) -> LastAnswer:
    before = member.last_answer
    running = _digest([(one["queueId"], one["threadSize"]) for one in queues])
    restarts = running != before.queues
    return LastAnswer(
        generation=generation,
        queues=running,
        content=_content(queues),
        rb_version=before.rb_version + restarts,
        meta_version=before.meta_version + 1,
    )


def _content(queues: Sequence[Settings]) -> str:
    """A digest of everything about queues, but for their offsets: these move all the time."""
    return _digest(
        [{name: value for name, value in one.items() if name != "offset"} for one in queues]
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.encode(value)).hexdigest()[:32]


def _acquired(
    member: JavaMember,
    assigned: Sequence[OwnedQueue],
    settings: Sequence[Settings],
    *,
    acquired_before: bool,
) -> list[Settings]:
    """The queues that the client owns on their nodes now, with their offsets.

    Those it has acquired before are among them while their node is away, at offset 0: a
    pull begins at the committed one.
    """
    claims = [Claim(one.queue, one.epoch) for one in assigned]
    states = positions.acquire(consumer=member.consumer, queues=claims) if claims else []
    return [
        one | {"offset": state.offset or 0}
        for one, state in zip(settings, states, strict=True)
        if state.state == "ok" or (acquired_before and state.state == "unavailable")
    ]


def _all_settings(member: JavaMember, answer: HeartbeatAnswer) -> list[Settings]:
    return [_settings(member, one) for one in answer.assigned]


def _settings(member: JavaMember, one: OwnedQueue) -> Settings:
    """A queue as the client is told it. Delays and filters are the broker's work."""
    known = snapshot.current()
    topic = known.topic(one.topic)
    origin = known.topic(one.origin_topic or one.topic)
    delivery = known.delivery(
        member.consumer.group_id, origin.id if origin is not None else 0
    )
    queue_id = handles.encode(member.consumer.member_id, one.queue)
    return {
        "queueOffsetId": queue_id,
        "queueId": queue_id,
        "offsetVersion": one.epoch,
        "offset": 0,
        "consumerGroupName": member.group,
        "topicName": one.topic,
        "originTopicName": one.origin_topic or one.topic,
        "topicType": FAILED if one.origin_topic else NORMAL,
        "topicId": topic.id if topic is not None else 0,
        "delayProcessTime": 0,
        "threadSize": 1 if delivery.ordered else delivery.threads or THREADS,
        "pullBatchSize": min(
            delivery.max_poll_records or PULL_MESSAGES, MOST_PULL_MESSAGES
        ),
        "consumerBatchSize": 1 if delivery.ordered else delivery.handler_batch or 1,
        # They count deliveries. Where nothing can be kept for a retry, they are not to
        # report failures.
        "retryCount": 0 if member.broadcasts else delivery.retries + 1,
        "stopFlag": int(one.stopped),
        "traceFlag": 0,
        "maxPullTime": MAX_PULL_S,
        "timeout": -(-(delivery.handler_timeout_ms or 0) // 1000),
    }


def _group(member: JavaMember, queues: Sequence[Settings]) -> Settings:
    meta = {
        "name": member.group,
        "rbVersion": member.last_answer.rb_version,
        "metaVersion": member.last_answer.meta_version,
        "version": member.version,
    }
    return {"meta": meta, "queues": {str(one["queueId"]): one for one in queues}}
