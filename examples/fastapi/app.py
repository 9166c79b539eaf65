"""An application that takes orders by HTTP, and bills them in the background.

uvicorn app:app --port 8200
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from catmq_client import CatmqError, Message
from catmq_client.aio import AsyncConsumer, AsyncProducer

log = logging.getLogger("uvicorn.error")

# Longer than any send takes while a broker restarts.
SEND_TIMEOUT_S = 30.0


class Order(BaseModel):
    customer: str
    item: str


async def bill(message: Message) -> None:
    """Bill an order. It may be called twice for the same message_id."""
    order = Order.model_validate_json(message.body)
    await asyncio.sleep(0.01)  # an HTTP call, say, to a payment service
    log.info("%s: %s for %s", message.message_id, order.item, order.customer)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the producer and start the consumer; end both when uvicorn shuts down."""
    async with (
        AsyncProducer() as producer,
        AsyncConsumer(group="billing", topics=["orders"]) as consumer,
    ):
        app.state.producer = producer
        consuming = asyncio.create_task(consumer.run(bill, concurrency=50))
        consuming.add_done_callback(end_after_error)
        yield
        # Handlers at work may finish. What they finished is committed, and the rest is given
        # back, when run() returns.
        consumer.stop()
        await asyncio.wait([consuming])


def end_after_error(consuming: asyncio.Task[None]) -> None:
    """Shut down if the consumer ended by an error, for example a deleted API key.

    Otherwise the application would take orders, and nothing would bill them.
    """
    error = None if consuming.cancelled() else consuming.exception()
    if error is not None:
        log.error("the consumer has ended: %s", error)
        os.kill(os.getpid(), signal.SIGTERM)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(order: Order, request: Request) -> dict[str, str]:
    """Send an order. Its message is stored durably before the answer."""
    producer: AsyncProducer = request.app.state.producer
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            receipt = await producer.send(
                "orders", json=order.model_dump(), key=order.customer
            )
    except (TimeoutError, CatmqError) as error:
        # The message may be stored nevertheless, so the client may repeat the order.
        log.warning("an order may not be stored: %r", error)
        raise HTTPException(503, "The order may not be stored. Try again.") from error
    return {"message_id": receipt.message_id}
