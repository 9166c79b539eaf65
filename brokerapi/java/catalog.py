"""Lists that Java clients ask for: brokers, topics of groups, queues of topics, unread
messages.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.java.endpoint import MOST_GROUPS, MOST_NAMES, Body, JavaEndpoint, JavaRequest
from messagestore.consume import group_lag
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access


class BareRequest(JavaRequest):
    pass


class GetMetaGroup(JavaEndpoint):
    """POST meta/getMetaGroup: no list of brokers, so the client keeps the URLs that it is
    configured with.
    """

    body = Body(BareRequest)

    def answer_to(self, call: Call, asked: BareRequest) -> dict[str, Any]:
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

    def answer_to(self, call: Call, asked: GroupRequest) -> dict[str, Any]:
        return {"topics": _topics(asked.consumerGroupName or "", call.actor)}


class GroupsRequest(JavaRequest):
    consumerGroupNames: Annotated[list[str], Meta(max_length=MOST_GROUPS)] | None = None


class GetGroupTopic(JavaEndpoint):
    """POST meta/getGroupTopic: the same for some groups."""

    body = Body(GroupsRequest)

    def answer_to(self, call: Call, asked: GroupsRequest) -> dict[str, Any]:
        names = dict.fromkeys(asked.consumerGroupNames or ())
        return {
            "groupTopics": [
                {"consumerGroupName": name, "topics": _topics(name, call.actor)}
                for name in names
            ]
        }


def _topics(group: str, actor: Actor) -> list[str]:
    """Names of the topics that a group reads, those of its failed messages left out.

    Raises Forbidden without any right on the group, NotFound.
    """
    access.require_any_right(actor, group)
    known = snapshot.find_group(group)
    current = snapshot.current()
    topics = (
        current.topics.get(one.topic_id) for one in current.subscriptions_of(known.id)
    )
    return sorted(one.name for one in topics if one is not None and one.failure_of is None)


class QueuesRequest(JavaRequest):
    topicNames: Annotated[list[str], Meta(max_length=MOST_NAMES)] | None = None


class GetTopicQueueIds(JavaEndpoint):
    """POST meta/getTopicQueueIds: the queues of topics that take messages; each topic has
    its list.
    """

    body = Body(QueuesRequest)

    def answer_to(self, call: Call, asked: QueuesRequest) -> dict[str, Any]:
        names = dict.fromkeys(asked.topicNames or ())
        return {"topicQueues": {name: _writable(name, call.actor) for name in names}}


def _writable(name: str, actor: Actor) -> list[int]:
    """Ids of the queues of a topic that take messages. Raises Forbidden without any right
    on it, NotFound.
    """
    if not access.may_see(actor, name):
        access.require(actor, "produce", name)
    topic = snapshot.find_topic(name)
    queues = snapshot.current().queues
    return [
        one for one in topic.queues if one in queues and queues[one].state == "read_write"
    ]


class GetMessageCount(JavaEndpoint):
    """POST consumer/getMessageCount: the unread messages of a group, in some topics or in
    all.
    """

    body = Body(GroupRequest)

    def answer_to(self, call: Call, asked: GroupRequest) -> dict[str, Any]:
        group = asked.consumerGroupName or ""
        topics = asked.topics or _topics(group, call.actor)
        offsets = group_lag.group_offsets(group=group, actor=call.actor)
        return {"count": sum(one.lag or 0 for one in offsets if one.topic in topics)}
