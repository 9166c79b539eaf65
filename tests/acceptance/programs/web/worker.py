"""worker.py: handles messages of the Django project until SIGTERM, each exactly once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress

import django

django.setup()

from catmq_client.contrib.django_outbox.inbox import handled_once  # noqa: E402
from catmq_client.message import Message  # noqa: E402
from tests.acceptance.programs.web import handling  # noqa: E402
from tests.acceptance.programs.web.models import Handled  # noqa: E402
from tests.support.journal import Journal  # noqa: E402

# Each call at work has a connection and waits for SQLite's single writer.
CONCURRENCY = 4


async def main() -> None:
    journal = Journal(os.environ["WEB_JOURNAL"])

    @handled_once(scope="web")
    async def handle(message: Message) -> None:
        with handling.noted(journal, message):
            await Handled.objects.acreate(name=message.text)

    async with handling.new_consumer() as consumer:
        consuming = asyncio.create_task(consumer.run(handle, concurrency=CONCURRENCY))
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, handling.end, consumer, consuming
        )
        journal.tell("up")
        with suppress(asyncio.CancelledError):
            await consuming
    journal.tell("left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(main())
