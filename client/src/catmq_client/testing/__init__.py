"""A broker in memory, for tests of applications without a network.

broker = FakeBroker()
broker.create_topic("orders", queues=2)
producer = Producer(transport=broker)
consumer = Consumer(transport=broker, group="billing", topics=["orders"])
"""

from __future__ import annotations

from catmq_client.testing.broker import FakeBroker
from catmq_client.testing.failures import FailedMessage
from catmq_client.testing.topics import StoredMessage

__all__ = ["FailedMessage", "FakeBroker", "StoredMessage"]
