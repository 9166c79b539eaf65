"""A group whose handlers fail: topic `orders` with a single queue, group `billing`, and a
member.
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
    """Create topic `orders` and group `billing`, which reads it. Return the id of the
    queue.
    """
    state = topics.create(name="orders", queues=1, actor=ME)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    if settings:
        change(**settings)
    snapshot.refresh()
    return state.queues[0].queue.queue


def change(**settings: Any) -> None:
    """Change the settings of the subscription."""
    subscription_rows.update(group="billing", topic="orders", settings=settings, actor=ME)
    snapshot.refresh()


def send(*bodies: bytes, **more: Any) -> None:
    """Send messages to the topic."""
    messages = [NewMessage(body=body, **more) for body in bodies]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def member(name: str = "one") -> Instance:
    """Join as a member, and acquire all assigned queues."""
    instance = Instance(name, group="billing").join()
    states = instance.take()
    assert {state for state, _ in states.values()} <= {"ok"}, states
    return instance


def report(who: Instance, *failed: Failure) -> Report:
    """Report failed messages and return the result."""
    return failures.report(consumer=who.id, failures=failed)


def fail(
    who: Instance, queue: int, *offsets: int, error: str = "ValueError: bad"
) -> Report:
    """Report messages of a queue that the member owns as failed."""
    failed_messages = [
        Failure(queue, who.owned[queue], offset, error, 1_000) for offset in offsets
    ]
    return report(who, *failed_messages)


def failure_queues() -> list[int]:
    """Return the queues of the group's failure topic, by number."""
    rows = Queue.objects.filter(topic__kind="failure", topic__state="ready").order_by(
        "number"
    )
    return list(rows.values_list("pk", flat=True))


def waiting() -> list[dict[str, Any]]:
    """Return the delayed copies of failed messages, with their columns."""
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
            **(copy := dict(zip(columns, row, strict=True))),
            "origin": msgspec.json.decode(copy["origin"]),
        }
        for row in rows
    ]


def on_failure_node(statement: str) -> list[tuple[Any, ...]]:
    """Run a statement directly on the failure node."""
    return tampering.look(failure_queues()[0], statement)


def pull_copies(who: Instance, queue: int, offset: int = 0) -> PulledQueue:
    """Return the messages that a member reads from a failure queue."""
    queues = [PullQueue(queue, who.owned[queue], offset)]
    return pull.pull(consumer=who.id, queues=queues, max_messages=100, max_bytes=1 << 20)[0]


def forget_connections() -> None:
    """Drop the pooled connections, as in a process that has just started."""
    node_pools.evict_all()


class Stopped(BaseException):
    """Raised at a step where a process would die."""


def stop_at(step: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, except that its `step`-th use raises Stopped instead (1 = the
    first).
    """
    used = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal used
        used += 1
        if used == step:
            raise Stopped
        return call(*args, **kwargs)

    return wrapped
