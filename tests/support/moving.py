"""Delayed messages in tests: sent, made due, moved step by step."""

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
    """Sends messages that are due in an hour."""
    messages = [NewMessage(body=body, delay_ms=HOUR_MS, **more) for body in bodies]
    found = publish(topic=topic, messages=messages, batch_id=None, actor=command("test"))
    return [one for one in found if isinstance(one, DelayedReceipt)]


def make_due(queue: int) -> None:
    """All delayed messages of the queue's node are due now, in the order in which they
    came.
    """
    on_sqlite = node_pools.node_of(queue).info.engine == "sqlite"
    hours = "due_at - 7200000" if on_sqlite else "due_at - INTERVAL 2 HOUR"
    plant(queue, f"UPDATE delayed_message SET due_at = {hours}")


def mover(queue: int) -> DelayedDelivery:
    """What moves the due messages of a queue's node."""
    return DelayedDelivery(node_pools.node_of(queue).info.id, holder="test")


def waiting(queue: int) -> list[tuple[int, bytes]]:
    """(queue, body) of what waits on a queue's node."""
    return look(queue, "SELECT queue_id, body FROM delayed_message ORDER BY id")


def stored(queue: int) -> list[StoredMessage]:
    """What is in a queue."""
    with node_pools.node_of(queue).reading() as session:
        return message_sql.select_messages(
            session, queue=queue, first=0, end=10**6, most_bytes=1 << 30
        )


def bodies(queue: int) -> list[bytes]:
    """The bodies of what is in a queue."""
    return [one.body for one in stored(queue)]


class Stopped(BaseException):
    """What a step raises where a process would die."""


def stop_at(step: int, call: Callable[..., Any], *, unless: bytes) -> Callable[..., Any]:
    """The call, except that its `step`-th use raises Stopped before it does anything (1 =
    the first).

    Strings of statements that begin with `unless` are not counted.
    """
    used = 0

    def stopping(session: Any, text: Any, *given: Any, **more: Any) -> Any:
        nonlocal used
        if not (isinstance(text, bytes) and text.startswith(unless)):
            used += 1
        if used == step:
            raise Stopped
        return call(session, text, *given, **more)

    return stopping
