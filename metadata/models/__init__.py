"""All models. Only metadata and the read-only lists of Django's admin use them."""

from metadata.models.alarms import Alarm, AlarmMail, ClockMark, DeadLetterCount
from metadata.models.brokers import Broker, BrokerProcess
from metadata.models.consumers import (
    BroadcastInstance,
    Consumer,
    ConsumerGroupConsumer,
    Heartbeat,
    OffsetMove,
    QueueOffset,
    Rebalance,
    RebalanceMove,
)
from metadata.models.failures import Redrive
from metadata.models.groups import ConsumerGroup, ConsumerGroupTopic
from metadata.models.nodes import DbNode, NodeSize
from metadata.models.operations import AuditLog, ChangeCounter, ChangeLog, JobRun, Lease
from metadata.models.reports import Report, ReportRow
from metadata.models.series import (
    CommitLook,
    HandlingTrace,
    JavaCaller,
    Sample,
    TopicProducer,
)
from metadata.models.topics import Queue, Topic, TopicRouting
from metadata.models.users import ApiKey, KeyFingerprint, SavedFilter, UserRights

__all__ = [
    "Alarm",
    "AlarmMail",
    "ApiKey",
    "AuditLog",
    "BroadcastInstance",
    "Broker",
    "BrokerProcess",
    "ChangeCounter",
    "ChangeLog",
    "ClockMark",
    "CommitLook",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupConsumer",
    "ConsumerGroupTopic",
    "DbNode",
    "DeadLetterCount",
    "HandlingTrace",
    "Heartbeat",
    "JavaCaller",
    "JobRun",
    "KeyFingerprint",
    "Lease",
    "NodeSize",
    "OffsetMove",
    "Queue",
    "QueueOffset",
    "Rebalance",
    "RebalanceMove",
    "Redrive",
    "Report",
    "ReportRow",
    "Sample",
    "SavedFilter",
    "Topic",
    "TopicProducer",
    "TopicRouting",
    "UserRights",
]
