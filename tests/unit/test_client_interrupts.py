"""Exceptions that are raised into the thread of a send: they pass unchanged, and others do
not suffer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import catmq_client
from catmq_client import Consumer, NewMessage, Producer, ShareConsumer
from catmq_client.testing import FakeBroker

LIMIT_S = 10.0
PACKAGE = str(Path(catmq_client.__file__).parent)
# Where an exception is raised into a thread. From Python 3.12 on, signal handlers run only
# where functions begin, at jumps back and after calls. At any line, an exception could
# leave the lock of a `with` held.
PLACES = {"line"} if sys.version_info < (3, 12) else {"call"}
# Where the FakeBroker is at work, or the request is on its way to it.
ELSEWHERE = ("testing", "http", "telemetry")


class SoftTimeLimit(Exception):
    """As Celery raises it."""


class GreenletTimeout(BaseException):
    """As gevent and eventlet raise it."""


class Interrupting:
    """A transport that raises what is planted for a method, once, before or after the
    request.
    """

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._planted: dict[str, tuple[BaseException, bool]] = {}

    def plant(self, method: str, error: BaseException, *, after: bool = False) -> None:
        self._planted[method] = error, after

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        error, after = self._planted.pop(method, (None, False))
        if error is not None and not after:
            raise error
        answer = self._broker.request(method, path, **more)
        if error is not None:
            raise error
        return answer


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("t", queues=1)
    return made


def bodies(broker: FakeBroker) -> list[bytes]:
    return [message.body for message in broker.messages("t")]


def send_batch(producer: Producer) -> object:
    return producer.send_batch(
        "t", [NewMessage(b"own", key="k"), NewMessage(b"own", key="k")]
    )


def send(producer: Producer) -> object:
    return producer.send("t", b"own", key="k")


@pytest.mark.parametrize("act", [send, send_batch])
@pytest.mark.parametrize(
    "error", [SoftTimeLimit(), GreenletTimeout(), KeyboardInterrupt(), SystemExit(3)]
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_exception_raised_into_a_send_passes_and_the_next_one_works(
    broker: FakeBroker, act: Callable[[Producer], object], error: BaseException, method: str
) -> None:
    transport = Interrupting(broker)
    with Producer(transport=transport) as producer:
        producer.send("t", b"first", key="k")
        # so that the next send looks it up
        producer._process_state().layouts.cached("t").loaded_at -= 3_600.0
        transport.plant(method, error)
        with pytest.raises(type(error)) as raised:
            act(producer)
        assert raised.value is error
        assert producer.send("t", b"next", key="k").offset == 1
    assert bodies(broker) == [b"first", b"next"]


@pytest.mark.parametrize("after", [False, True])
def test_a_message_of_others_in_the_same_batch_is_sent_once_all_the_same(
    broker: FakeBroker, after: bool
) -> None:
    transport, called = Interrupting(broker), threading.Event()
    with Producer(transport=transport, linger_ms=60_000) as producer:
        other = producer.send_async("t", b"other", key="k")
        other.add_done_callback(lambda _: called.set())
        transport.plant("POST", SoftTimeLimit(), after=after)
        with pytest.raises(SoftTimeLimit):
            producer.send("t", b"own", key="k")
        assert other.result(LIMIT_S).offset == 0
        assert called.wait(LIMIT_S)
    assert bodies(broker) == [b"other", b"own"]


def test_callbacks_of_others_do_not_run_in_the_thread_of_a_send(broker: FakeBroker) -> None:
    threads: list[str] = []
    with Producer(transport=broker, linger_ms=60_000) as producer:
        other = producer.send_async("t", b"other", key="k")
        other.add_done_callback(lambda _: threads.append(threading.current_thread().name))
        producer.send("t", b"own", key="k")
        producer.flush(LIMIT_S)
    assert threads == ["catmq-sender"]


def interrupted_at(number: int, act: Callable[[], object]) -> str | None:
    """Raise SoftTimeLimit at the so-many-th place of the client that `act` runs; return
    that place.

    None: `act` ran to its end before. Raises AssertionError if anything else was raised.
    """
    place: list[str] = []
    count = 0

    def trace_place(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event in PLACES
        if count == number and not place:
            place.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            raise SoftTimeLimit
        return trace_place

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        folder = Path(frame.f_code.co_filename).parent
        is_ours = str(folder).startswith(PACKAGE) and folder.name not in ELSEWHERE
        return trace_place(frame, event, arg) if is_ours else None

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except SoftTimeLimit:
        assert place
    finally:
        sys.settrace(former)
    return place[0] if place else None


@pytest.mark.parametrize("act", [send, send_batch])
def test_wherever_a_send_is_interrupted_the_buffer_stays_whole(
    act: Callable[[Producer], object],
) -> None:
    for number in range(1, 10_000):
        broker = FakeBroker()
        broker.create_topic("t", queues=1)
        producer, called = (
            Producer(transport=broker, linger_ms=60_000, retry_backoff_ms=1),
            threading.Event(),
        )
        other = producer.send_async("t", b"other", key="k")
        other.add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
        place = interrupted_at(number, lambda producer=producer: act(producer))  # type: ignore[misc]
        producer.send("t", b"next", key="k")
        assert other.result(LIMIT_S).offset == 0, place
        assert called.wait(LIMIT_S), place
        producer.close(LIMIT_S)
        assert sorted(bodies(broker))[:2] == [b"next", b"other"], place
        accumulator = producer._state.accumulator  # type: ignore[union-attr]
        with accumulator.lock:
            accumulator._recount()
        assert (accumulator._messages, accumulator._bytes) == (0, 0), place
        if place is None:
            break
    assert number > 30


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_wherever_a_poll_is_interrupted_no_message_is_skipped(
    broker: FakeBroker, kind: Any
) -> None:
    count = 2_000
    with Producer(transport=broker) as producer:
        producer.send_batch("t", [NewMessage(b"%d" % n) for n in range(count)])
    seen: list[int] = []
    with kind(transport=broker, group="g", topics=["t"]) as consumer:

        def poll() -> None:
            # A list of bodies is made before any is noted, so none is noted that poll() did
            # not return.
            seen.extend(
                [int(message.body) for message in consumer.poll(3, timeout_s=LIMIT_S)]
            )

        poll()
        for number in range(1, 10_000):
            if interrupted_at(number, poll) is None:
                break
            poll()
        assert number > 20
        while len(set(seen)) < count:
            before = len(seen)
            poll()
            assert len(seen) > before
        consumer.commit()
    # On a busy machine a lease may end before the test does: then share groups get its
    # messages again.
    assert sorted(set(seen)) == [*range(count)]
    assert kind is ShareConsumer or seen == [*range(count)]
    assert sum(broker.committed("g").values()) == count
