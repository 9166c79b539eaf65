"""Sends to topic `orders`, which has a single queue."""

from __future__ import annotations

from uuid import UUID

from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from metadata.actors import command
from metadata.errors import CatmqError


def send(batch_id: UUID | None = None) -> int:
    """Send a message and return its offset."""
    (receipt,) = publish(
        topic="orders",
        messages=[NewMessage(body=b"x")],
        batch_id=batch_id,
        actor=command("test"),
    )
    return receipt.offset


def try_send(batch_id: UUID | None = None) -> list[int] | None:
    """Return the offset in a list, None if the send failed."""
    try:
        return [send(batch_id)]
    except CatmqError:
        return None
