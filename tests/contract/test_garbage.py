"""What a request leaves behind: nothing that only Python's garbage collector could find."""

from __future__ import annotations

import gc

from django.core.handlers.wsgi import WSGIRequest

from catmq_client import NewMessage, Producer
from catmq_client.sending.receipts import Batch, SendFuture
from tests.support.broker import Broker
from tests.support.members import reader
from tests.support.waiting import until

ROUNDS = 10
LIMIT_S = 10.0


KINDS = (WSGIRequest, Batch, SendFuture)


def living() -> set[int]:
    """The objects of these kinds that there are."""
    return {id(one) for one in gc.get_objects() if isinstance(one, KINDS)}


def test_requests_and_what_they_carry_go_when_they_are_answered(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    producer = Producer(broker.url, api_key=broker.api_key)
    gc.collect()
    gc.disable()
    before = living()  # of other tests, whose idle threads have not ended
    try:
        for place in range(ROUNDS):
            producer.send_batch("single", [NewMessage(b"x", queue=queue)])
            producer.send("single", b"y", key="k")
            broker.call("POST", "/topics/single/messages", {"messages": []})  # refused
            member.pull(member.position(queue, 2 * place))
            member.commit(member.position(queue, 2 * place + 2))
        member.heartbeat()
        broker.ok("GET", "/topics/single")
        # Those go whose thread has just ended.
        until(lambda: not living() - before, limit_s=LIMIT_S, every_s=0.05)
    finally:
        gc.enable()
        producer.close()
