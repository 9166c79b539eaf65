"""The application `app` for uvicorn: an endpoint sends, and a task of the lifespan consumes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, HTTPException

from catmq_client.aio import AsyncProducer
from catmq_client.message import Message
from tests.acceptance.programs.web import handling
from tests.support.journal import Journal

CONCURRENCY = 20

logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    journal = Journal(os.environ["WEB_JOURNAL"])

    async def handle(message: Message) -> None:
        with handling.noted(journal, message):
            await handling.work()

    async with AsyncProducer() as producer, handling.new_consumer() as consumer:
        app.state.producer = producer
        consuming = asyncio.create_task(consumer.run(handle, concurrency=CONCURRENCY))
        yield
        handling.end(consumer, consuming)
        with suppress(asyncio.CancelledError):
            await consuming
    journal.tell("left")


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{name}")
async def place_order(name: str, timeout_s: float = 30.0) -> dict[str, int]:
    """Send a message. A short timeout cancels the send wherever it is."""
    try:
        async with asyncio.timeout(timeout_s):
            receipt = await app.state.producer.send(
                os.environ["WEB_TOPIC"], name, key=name.partition("-")[0]
            )
    except TimeoutError as error:
        raise HTTPException(504) from error
    return {"queue": receipt.queue, "offset": receipt.offset}
