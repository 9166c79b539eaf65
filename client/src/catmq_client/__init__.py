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
from catmq_client.errors import (
    AnswerLost,
    BodyNotText,
    BufferFull,
    CatmqError,
    Closed,
    CommitFailed,
    Conflict,
    ConnectFailed,
    ConsumerError,
    ConsumerReplaced,
    DeliveryTimeout,
    FieldError,
    Forbidden,
    Gone,
    HandlerFailed,
    HandlerTimeout,
    InvalidRequest,
    MaxPollIntervalExceeded,
    MessageRefused,
    NotBuilt,
    NotFound,
    OffsetReset,
    OffsetsMissing,
    OptionError,
    ReadError,
    Refused,
    SendError,
    SendOutcomeUnknown,
    ServerFailed,
    Unauthenticated,
    Unavailable,
)
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.keywords import ConsumerKeywords, ProducerKeywords, ShareConsumerKeywords
from catmq_client.message import AssignedQueue, Message, Origin
from catmq_client.producer import Producer
from catmq_client.sending.new_messages import NewMessage
from catmq_client.sending.receipts import Receipt, SendFuture
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.messages import ShareMessage
from catmq_client.version import VERSION

__version__ = VERSION

__all__ = [
    "AnswerLost",
    "AssignedQueue",
    "BodyNotText",
    "BufferFull",
    "CatmqError",
    "Closed",
    "CommitFailed",
    "Conflict",
    "ConnectFailed",
    "Consumer",
    "ConsumerError",
    "ConsumerKeywords",
    "ConsumerReplaced",
    "DeliveryTimeout",
    "FieldError",
    "Forbidden",
    "Gone",
    "HandlerFailed",
    "HandlerTimeout",
    "HttpTransport",
    "InvalidRequest",
    "MaxPollIntervalExceeded",
    "Message",
    "MessageRefused",
    "NewMessage",
    "NotBuilt",
    "NotFound",
    "OffsetReset",
    "OffsetsMissing",
    "OptionError",
    "Origin",
    "Producer",
    "ProducerKeywords",
    "ReadError",
    "Receipt",
    "Refused",
    "SendError",
    "SendFuture",
    "SendOutcomeUnknown",
    "ServerFailed",
    "ShareConsumer",
    "ShareConsumerKeywords",
    "ShareMessage",
    "Transport",
    "Unauthenticated",
    "Unavailable",
]
