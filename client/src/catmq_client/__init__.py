"""The Python client of CatMQ: Producer, Consumer and ShareConsumer.

from catmq_client import Producer, Consumer

with Producer("http://127.0.0.1:8000") as producer:
    receipt = producer.send("orders", b"...", key="42")

with Consumer("http://127.0.0.1:8000", group="billing", topics=["orders"]) as consumer:
    for message in consumer:
        print(message.offset, message.text)
"""

from __future__ import annotations

from catmq_client.consumer import Consumer
from catmq_client.errors import CatmqError
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.message import Message, Origin
from catmq_client.producer import Producer
from catmq_client.reading.owned import AssignedQueue
from catmq_client.sending.new_messages import NewMessage
from catmq_client.sending.receipts import Receipt, SendFuture
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.messages import ShareMessage
from catmq_client.version import VERSION

__version__ = VERSION

__all__ = [
    "AssignedQueue",
    "CatmqError",
    "Consumer",
    "HttpTransport",
    "Message",
    "NewMessage",
    "Origin",
    "Producer",
    "Receipt",
    "SendFuture",
    "ShareConsumer",
    "ShareMessage",
    "Transport",
]
