"""Lists for Java clients: brokers, topics of groups, queues of topics, unread messages."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.java.endpoint import MOST_GROUPS, MOST_NAMES, Body, JavaEndpoint, JavaRequest
from messagestore.consume import group_lag
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.rules.rights import Right
from metadata.rules.topics.states import QueueState


class GetMetaGroup(JavaEndpoint):
    """POST meta/getMetaGroup: no list of brokers, so that the client keeps its configured
    URLs.
    """

    body = Body(JavaRequest)

    def answer_to(self, call: Call, request: JavaRequest) -> dict[str, Any]:
        return {
            "brokerIpG1": [],
            "brokerIpG2": [],
            "brokerMetaMode": 0,
            "groupFlag": 0,
            "metricUrl": "",
        }


class GroupRequest(JavaRequest):
    consumerGroupName: str | None = None
    topics: Annotated[list[str], Meta(max_length=MOST_NAMES)] | None = None


class GetTopic(JavaEndpoint):
    """POST meta/getTopic: the topics that a group reads."""

    body = Body(GroupRequest)

    def answer_to(self, call: Call, request: GroupRequest) -> dict[str, Any]:
        return {"topics": _topic_names(request.consumerGroupName or "", call.actor)}


class GroupsRequest(JavaRequest):
    consumerGroupNames: Annotated[list[str], Meta(max_length=MOST_GROUPS)] | None = None


class GetGroupTopic(JavaEndpoint):
    """POST meta/getGroupTopic: the topics that each of some groups reads."""

    body = Body(GroupsRequest)

    def answer_to(self, call: Call, request: GroupsRequest) -> dict[str, Any]:
        names = dict.fromkeys(request.consumerGroupNames or ())
        return {
            "groupTopics": [
                {"consumerGroupName": name, "topics": _topic_names(name, call.actor)}
                for name in names
            ]
        }


def _topic_names(group: str, actor: Actor) -> list[str]:
    """Return the names of the topics that a group reads, without retry topics.

    Raises Forbidden without any right on the group, NotFound.
    """
    access.require_any_right(actor, group)
    group_info = snapshot.find_group(group)
    current = snapshot.current()
    topics = (
        current.topics.get(subscription.topic_id)
        for subscription in current.subscriptions_of(group_info.id)
    )
    return sorted(
        subscription.name
        for subscription in topics
        if subscription is not None and subscription.failure_of is None
    )


class QueuesRequest(JavaRequest):
    topicNames: Annotated[list[str], Meta(max_length=MOST_NAMES)] | None = None


class GetTopicQueueIds(JavaEndpoint):
    """POST meta/getTopicQueueIds: the queues of each topic that accept messages."""

    body = Body(QueuesRequest)

    def answer_to(self, call: Call, request: QueuesRequest) -> dict[str, Any]:
        names = dict.fromkeys(request.topicNames or ())
        return {"topicQueues": {name: _writable_queues(name, call.actor) for name in names}}


def _writable_queues(name: str, actor: Actor) -> list[int]:
    """Return the ids of a topic's queues that accept messages. Raises Forbidden without any
    right on it, NotFound.
    """
    if not access.may_see(actor, name):
        access.require(actor, Right.PRODUCE, name)
    topic = snapshot.find_topic(name)
    queues = snapshot.current().queues
    return [
        queue
        for queue in topic.queues
        if queue in queues and queues[queue].state == QueueState.READ_WRITE
    ]


class GetMessageCount(JavaEndpoint):
    """POST consumer/getMessageCount: the unread messages of a group, in some topics or in
    all.
    """

    body = Body(GroupRequest)

    def answer_to(self, call: Call, request: GroupRequest) -> dict[str, Any]:
        group = request.consumerGroupName or ""
        topics = request.topics or _topic_names(group, call.actor)
        offsets = group_lag.group_offsets(group=group, actor=call.actor)
        return {"count": sum(queue.lag or 0 for queue in offsets if queue.topic in topics)}
