"""Delayed messages in tests: sent, made due, and moved step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from messagestore.engine.messages import NewMessage, StoredMessage
from messagestore.pool import node_pools
from messagestore.produce.delayed_delivery import DelayedDelivery
from messagestore.produce.delayed_store import DelayedReceipt
from messagestore.produce.publish import publish
from messagestore.tables import message_sql
from metadata.actors import command
from tests.support.tampering import look, plant

HOUR_MS = 3_600_000


def delay(topic: str, *bodies: bytes, **more: Any) -> list[DelayedReceipt]:
    """Send messages that are due in an hour."""
    messages = [NewMessage(body=body, delay_ms=HOUR_MS, **more) for body in bodies]
    receipts = publish(topic=topic, messages=messages, batch_id=None, actor=command("test"))
    return [receipt for receipt in receipts if isinstance(receipt, DelayedReceipt)]


def make_due(queue: int) -> None:
    """Make all delayed messages of the queue's node due now, in their order."""
    on_sqlite = node_pools.node_of(queue).info.engine == "sqlite"
    hours = "due_at - 7200000" if on_sqlite else "due_at - INTERVAL 2 HOUR"
    plant(queue, f"UPDATE delayed_message SET due_at = {hours}")


def mover(queue: int) -> DelayedDelivery:
    """Return the loop that delivers the due messages of a queue's node."""
    return DelayedDelivery(node_pools.node_of(queue).info.id, holder="test")


def waiting(queue: int) -> list[tuple[int, bytes]]:
    """Return (queue, body) of the delayed messages on a queue's node."""
    return look(queue, "SELECT queue_id, body FROM delayed_message ORDER BY id")


def stored(queue: int) -> list[StoredMessage]:
    """Return the messages of a queue."""
    with node_pools.node_of(queue).reading() as session:
        return message_sql.select_messages(
            session, queue=queue, first=0, end=10**6, most_bytes=1 << 30
        )


def bodies(queue: int) -> list[bytes]:
    """Return the bodies of the messages of a queue."""
    return [message.body for message in stored(queue)]


class Stopped(BaseException):
    """Raised at a step where a process would die."""


def stop_at(step: int, call: Callable[..., Any], *, unless: bytes) -> Callable[..., Any]:
    """Return the call, except that its `step`-th use raises Stopped instead (1 = the
    first).

    Statements that begin with `unless` are not counted.
    """
    used = 0

    def stopping(session: Any, text: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal used
        if not (isinstance(text, bytes) and text.startswith(unless)):
            used += 1
        if used == step:
            raise Stopped
        return call(session, text, *arguments, **more)

    return stopping
