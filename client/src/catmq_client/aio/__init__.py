"""The client for asyncio: AsyncProducer, AsyncConsumer and AsyncShareConsumer.

from catmq_client.aio import AsyncConsumer, AsyncProducer

async with AsyncProducer("http://127.0.0.1:8000") as producer:
    receipt = await producer.send("orders", b"...", key="42")

async with AsyncConsumer("http://127.0.0.1:8000", group="billing", topics=["orders"]) as consumer:
    async for message in consumer:
        print(message.offset, message.text)

They are a layer over the same engine as Producer, Consumer and ShareConsumer, and take the
same options. Nothing is bound to an event loop before it is used. No signal handlers are
installed. It works with uvloop, too.
"""

from __future__ import annotations

from catmq_client.aio.consumers import AsyncConsumer, AsyncShareConsumer
from catmq_client.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncShareConsumer"]
