"""How a send is answered: a result for each message, or runs of them for those who ask."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from catmq_client import HttpTransport, Producer, Receipt
from catmq_client.sending.ids import uuid7
from tests.support.broker import MSGPACK, Broker, problem

LATER_MS = 3_600_000


@pytest.fixture
def queues(broker: Broker, topic: str) -> list[int]:
    """The queues of `topic`."""
    return sorted(row["queue"] for row in broker.ok("GET", f"/topics/{topic}")["queues"])


def close(broker: Broker, topic: str, queue: int) -> None:
    """Takes no more messages into a queue."""
    broker.ok("PATCH", f"/topics/{topic}/queues/{queue}", {"state": "read_only"})


def named(*queues: int | None, **more: Any) -> list[dict[str, Any]]:
    """Messages, each for a queue."""
    return [
        {"body": str(index), "queue": queue, **more} for index, queue in enumerate(queues)
    ]


def send(
    broker: Broker,
    topic: str,
    messages: list[dict[str, Any]],
    *,
    accept: str = "*/*",
    **more: Any,
) -> dict[str, Any]:
    """The answer to a send in JSON, as `accept` wants it; with runs unless `receipts` says
    otherwise.
    """
    body = {
        "messages": [{k: v for k, v in one.items() if v is not None} for one in messages]
    }
    body |= {"receipts": "runs", **more}
    answer = broker.call(
        "POST", f"/topics/{topic}/messages", body, headers={"Accept": accept}
    )
    assert answer.status_code == 200, answer.text
    packed = answer.headers["Content-Type"] == MSGPACK
    decoded: dict[str, Any] = (
        msgspec.msgpack.decode(answer.content) if packed else answer.json()
    )
    return decoded


def run(count: int, queue: int, offset: int) -> dict[str, int]:
    return {"count": count, "queue": queue, "offset": offset}


def stored(broker: Broker, topic: str, queue: int) -> list[str]:
    found = broker.ok("GET", f"/topics/{topic}/messages?queue={queue}&limit=100")[
        "messages"
    ]
    return [one["body"] for one in found]


@pytest.mark.parametrize("packed", [False, True])
def test_a_queue_that_is_not_strict_gives_way(
    broker: Broker, topic: str, queues: list[int], packed: bool
) -> None:
    first = queues[0]
    close(broker, topic, first)
    wish = {
        **({"body_bytes": b"x"} if packed else {"body": "x"}),
        "queue": first,
        "queue_strict": False,
    }
    body = {"messages": [wish, {**wish, "queue_strict": True}]}
    ask = broker.packed if packed else broker.ok
    given, refused = ask("POST", f"/topics/{topic}/messages", body)["results"]
    assert given["queue"] in queues[1:]
    assert refused["error"]["code"] == "queue_not_writable"


def test_a_queue_that_is_not_strict_must_be_named_and_be_of_the_topic(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    nowhere = {"queue": 999_999, "queue_strict": False}
    for more, status, code in (
        ({"queue_strict": False}, 400, "invalid"),
        (nowhere, 404, "queue_not_found"),
    ):
        answer = broker.call(
            "POST", f"/topics/{topic}/messages", {"messages": [{"body": "x", **more}]}
        )
        problem(answer, status, code)


def test_a_producer_that_may_only_send_leaves_the_choice_to_the_broker(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    close(broker, topic, queues[0])
    only_sends = broker.as_key({"produce": [topic]})
    with Producer(only_sends.url, api_key=only_sends.api_key) as producer:
        assert (
            producer.send(topic, "x", queue=queues[0], queue_strict=False).queue
            in queues[1:]
        )


def test_messages_side_by_side_are_one_run(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    assert send(broker, topic, named(*[first] * 3)) == {"runs": [run(3, first, 0)]}
    assert send(broker, topic, named(first)) == {"runs": [run(1, first, 3)]}
    assert send(broker, topic, named(*[second] * 2)) == {"runs": [run(2, second, 0)]}


def test_messages_without_a_queue_are_one_run_wherever_they_go(
    broker: Broker, topic: str
) -> None:
    (only,) = send(broker, topic, named(None, None, None))["runs"]
    assert (only["count"], only["offset"]) == (3, 0)
    assert stored(broker, topic, only["queue"]) == ["0", "1", "2"]


def test_runs_tell_the_messages_of_two_queues_in_the_order_of_the_request(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    answer = send(broker, topic, named(first, first, second, first, second, second))
    assert answer["runs"] == [
        run(2, first, 0), run(1, second, 0), run(1, first, 2), run(2, second, 1),
    ]  # fmt: skip
    assert stored(broker, topic, first) == ["0", "1", "3"]
    assert stored(broker, topic, second) == ["2", "4", "5"]


def test_messages_of_one_queue_that_are_not_side_by_side_are_several_runs(
    broker: Broker, queue: int
) -> None:
    # what names its queue is stored by itself
    apart = send(broker, "single", named(queue, None, queue))
    assert apart["runs"] == [run(1, queue, 0), run(1, queue, 2), run(1, queue, 1)]
    assert stored(broker, "single", queue) == ["0", "2", "1"]
    assert send(broker, "single", named(queue, queue, None))["runs"] == [run(3, queue, 3)]


def test_a_repeat_is_told_the_same_runs(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    messages, batch_id = named(first, second, first), uuid7()
    told = send(broker, topic, messages, batch_id=batch_id)
    send(broker, topic, named(first, second))
    assert send(broker, topic, messages, batch_id=batch_id) == told
    assert told["runs"] == [run(1, first, 0), run(1, second, 0), run(1, first, 1)]


def test_delayed_messages_are_runs_of_their_own(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    now, later = named(first, first, second, first), named(first, first, delay_ms=LATER_MS)
    runs = send(
        broker, topic, [now[0], later[0], later[1], now[1], now[2], later[0], now[3]]
    )["runs"]

    assert [one["count"] for one in runs] == [1] * 7
    assert [runs[at] for at in (0, 3, 4, 6)] == [
        run(1, first, 0), run(1, first, 1), run(1, second, 0), run(1, first, 2),
    ]  # fmt: skip
    waiting = [runs[at]["result"] for at in (1, 2, 5)]
    assert all(set(one) == {"message_id", "due_at_ms"} for one in waiting)
    assert len({one["message_id"] for one in waiting}) == 3
    kept = broker.ok("GET", f"/topics/{topic}/delayed")
    assert {one["message_id"] for one in waiting} == {
        one["message_id"] for one in kept["messages"]
    }


def test_a_send_that_is_all_delayed_has_a_run_for_each(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    runs = send(broker, topic, named(*[queues[0]] * 3, delay_ms=LATER_MS))["runs"]
    assert [(one["count"], set(one["result"])) for one in runs] == [
        (1, {"message_id", "due_at_ms"})
    ] * 3


def test_messages_that_were_refused_side_by_side_are_one_run(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    close(broker, topic, second)
    runs = send(broker, topic, named(first, second, second, first, first, second))["runs"]
    assert [runs[at] for at in (0, 2)] == [run(1, first, 0), run(2, first, 1)]
    assert [(runs[at]["count"], set(runs[at])) for at in (1, 3)] == [
        (2, {"count", "result"}), (1, {"count", "result"}),
    ]  # fmt: skip
    assert runs[1]["result"] == runs[3]["result"]
    assert runs[1]["result"]["error"]["code"] == "queue_not_writable"
    assert (stored(broker, topic, first), stored(broker, topic, second)) == (
        ["0", "3", "4"],
        [],
    )


def test_a_send_that_is_refused_whole_is_a_problem(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    close(broker, topic, queues[0])
    body = {"messages": named(queues[0], queues[0]), "receipts": "runs"}
    answer = broker.call("POST", f"/topics/{topic}/messages", body)
    problem(answer, 409, "queue_not_writable")


ACCEPTS = ["application/json", "application/msgpack", "application/msgpack;messages=rows"]


@pytest.mark.parametrize("asked", [{}, {"receipts": "each"}], ids=["nothing", "each"])
@pytest.mark.parametrize("accept", [*ACCEPTS, "application/msgpack;receipts=runs"])
def test_who_does_not_ask_for_runs_gets_a_result_for_each_message(
    broker: Broker, queue: int, accept: str, asked: dict[str, str]
) -> None:
    body = {"messages": [*named(queue, queue), *named(queue, delay_ms=LATER_MS)], **asked}
    answer = broker.call(
        "POST", "/topics/single/messages", body, headers={"Accept": accept}
    )
    decode = msgspec.json.decode if "json" in accept else msgspec.msgpack.decode
    told = decode(answer.content)
    assert [*told] == ["results"]
    one, two, later = told["results"]
    assert one == {"queue": queue, "offset": 0, "message_id": f"{queue}-0"}
    assert two == {"queue": queue, "offset": 1, "message_id": f"{queue}-1"}
    assert set(later) == {"message_id", "due_at_ms"}


def test_a_result_for_each_message_tells_which_was_refused(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    close(broker, topic, second)
    told = send(broker, topic, named(first, second), receipts="each")
    assert [*told] == ["results"]
    assert [set(one) for one in told["results"]] == [
        {"queue", "offset", "message_id"},
        {"error"},
    ]
    assert told["results"][1]["error"]["code"] == "queue_not_writable"


@pytest.mark.parametrize("accept", ACCEPTS)
def test_runs_come_in_every_format(broker: Broker, queue: int, accept: str) -> None:
    assert send(broker, "single", named(queue, queue), accept=accept) == {
        "runs": [run(2, queue, 0)]
    }


def test_runs_may_be_asked_for_in_messagepack(broker: Broker, queue: int) -> None:
    body = {"messages": [{"body_bytes": b"\xff", "queue": queue}] * 2, "receipts": "runs"}
    assert broker.packed("POST", "/topics/single/messages", body) == {
        "runs": [run(2, queue, 0)]
    }


@pytest.mark.parametrize("asked", ["all", "", "Runs", None, True, ["runs"]])
def test_other_receipts_are_refused_and_nothing_is_stored(
    broker: Broker, queue: int, asked: Any
) -> None:
    body = {"messages": named(queue), "receipts": asked}
    problem(
        broker.call("POST", "/topics/single/messages", body), 400, "invalid", "receipts"
    )
    assert stored(broker, "single", queue) == []


def test_the_client_makes_receipts_of_runs(
    broker: Broker, topic: str, queues: list[int]
) -> None:
    first, second = queues
    transport = HttpTransport(broker.url, api_key=broker.api_key, discover=False)
    with Producer(transport=transport, delivery_timeout_ms=300) as producer:
        told = producer.send_batch(topic, named(first, second, first))
        assert told == [
            Receipt(topic, first, 0, f"{first}-0"),
            Receipt(topic, second, 0, f"{second}-0"),
            Receipt(topic, first, 1, f"{first}-1"),
        ]
        later = producer.send(topic, "x", queue=first, delay_ms=LATER_MS)
        assert (later.queue, later.offset) == (None, None) and later.due_at_ms
    sent = [{"body_bytes": b"", "queue": queue} for queue in (first, second)]
    body = {"messages": sent, "receipts": "runs"}
    close(broker, topic, second)
    answer = transport.request("POST", f"/api/v1/topics/{topic}/messages", body=body)
    assert [run["count"] for run in answer["runs"]] == [1, 1]
    transport.close()
