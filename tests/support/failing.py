"""A group whose handlers fail: topic `orders` with one queue, group `billing`, and a member
of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from messagestore.consume import pull
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.retries import failures
from messagestore.retries.failures import Failure, Report
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.groups import groups, subscription_rows
from metadata.models import Queue
from tests.support import tampering
from tests.support.instances import Instance

ME = actors.command("test")


def billing(**settings: Any) -> int:
    """Topic `orders` and the group `billing` that reads it; the id of its queue."""
    state = topics.create(name="orders", queues=1, actor=ME)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    if settings:
        change(**settings)
    snapshot.refresh()
    return state.queues[0].queue.queue


def change(**settings: Any) -> None:
    """Changes how the group gets its messages."""
    subscription_rows.update(group="billing", topic="orders", settings=settings, actor=ME)
    snapshot.refresh()


def send(*bodies: bytes, **more: Any) -> None:
    """Sends to the topic."""
    messages = [NewMessage(body=body, **more) for body in bodies]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def member(name: str = "one") -> Instance:
    """A member that has acquired all it was told to own."""
    made = Instance(name, group="billing").join()
    states = made.take()
    assert {state for state, _ in states.values()} <= {"ok"}, states
    return made


def report(who: Instance, *failed: Failure) -> Report:
    """What becomes of failed messages."""
    return failures.report(consumer=who.id, failures=failed)


def fail(
    who: Instance, queue: int, *offsets: int, error: str = "ValueError: bad"
) -> Report:
    """Reports messages of a queue that the member owns."""
    named = [Failure(queue, who.owned[queue], offset, error, 1_000) for offset in offsets]
    return report(who, *named)


def failure_queues() -> list[int]:
    """The queues of the group's failure topic, by number."""
    rows = Queue.objects.filter(topic__kind="failure", topic__state="ready").order_by(
        "number"
    )
    return list(rows.values_list("pk", flat=True))


def waiting() -> list[dict[str, Any]]:
    """The copies that wait for their time, with what they know."""
    columns = (
        "queue_id",
        "attempt",
        "origin",
        "body",
        "msg_key",
        "tag",
        "headers",
        "trace_id",
        "producer",
    )
    rows = on_failure_node(f"SELECT {', '.join(columns)} FROM delayed_message ORDER BY id")
    return [
        {
            **(named := dict(zip(columns, row, strict=True))),
            "origin": msgspec.json.decode(named["origin"]),
        }
        for row in rows
    ]


def on_failure_node(statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement on the failure node behind the product's back."""
    return tampering.look(failure_queues()[0], statement)


def pull_copies(who: Instance, queue: int, offset: int = 0) -> PulledQueue:
    """What a member reads of a failure queue."""
    asked = [PullQueue(queue, who.owned[queue], offset)]
    return pull.pull(consumer=who.id, queues=asked, max_messages=100, max_bytes=1 << 20)[0]


def forget_connections() -> None:
    """As a process that has just started."""
    node_pools.evict_all()


class Stopped(BaseException):
    """What a step raises where a process would die."""


def stop_at(step: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, except that its `step`-th use raises Stopped before it does anything (1 =
    the first).
    """
    used = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal used
        used += 1
        if used == step:
            raise Stopped
        return call(*args, **kwargs)

    return wrapped
